"""Batching, text assembly and stopping; pure except for ``worker.engine.mlx``."""
