"""This service, mlx_lm.server and mlx-lm's bare generator on the same requests, in turn."""
