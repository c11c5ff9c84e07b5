"""How costs grow with the log: logs of several sizes, and operations on each."""
