"""Continuous batching, and the way from token ids to stream items; ``engine.py`` gives the tour.

No module imports MLX, except those in ``worker.engine.mlx``.
"""
