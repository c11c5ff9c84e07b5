"""The only package that imports ``mlx`` and ``mlx_lm``."""
