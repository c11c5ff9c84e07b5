"""Commands of ``semantic models``: list, plan, register and download models."""
