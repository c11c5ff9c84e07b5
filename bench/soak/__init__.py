"""An hour of mixed load, and whether anything grows."""
