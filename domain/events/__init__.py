"""Event types, one module per stream family; ``event`` has their union. No folds, no I/O."""
