"""Accounts of the KV cache without arrays: block names, contexts, checkpoints, pool, relief."""
