"""One verb per module; every dependency is an argument."""
