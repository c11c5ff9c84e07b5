"""KV blocks as MLX arrays: cut from mlx-lm's caches, stored, and restored into caches.

Everything here runs on the engine thread. Pool accounting lives in ``domain.kv``, files in
``ops.blockstore``.
"""
