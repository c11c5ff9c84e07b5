"""Accounting of the KV cache without arrays: block names, prefix index, pool, manifests."""
