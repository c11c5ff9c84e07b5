"""The only package that imports ``mlx`` and ``mlx_lm``: runs models behind ``engine.ports``.

Scheduling, text output and grammars live beside it in ``worker.engine``; files in ``cachestore``.
"""
