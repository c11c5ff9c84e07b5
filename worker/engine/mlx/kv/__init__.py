"""Blocks out of mlx-lm's caches, and caches out of blocks. Everything runs on the engine thread."""
