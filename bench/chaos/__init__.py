"""Mixed load on a running service while faults are injected, and a checker of the history."""
