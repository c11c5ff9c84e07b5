"""The engine's access to the block store: write-behind, read-ahead, manifests and reports.

The files themselves live in ``ops.blockstore``, contexts in memory in ``worker.engine.mlx``.
"""
