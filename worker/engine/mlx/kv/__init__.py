"""The KV caches of contexts as MLX arrays: opened, parked, shortened, saved and restored.

Everything here runs on the engine thread. Accounts live in ``domain.kv``, files in
``ops.blockstore``.
"""
