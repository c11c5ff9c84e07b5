"""The arithmetic of the KV cache: what a block is, what it is called, and who holds it."""
