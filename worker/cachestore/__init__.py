"""The engine's way to the block store: written behind, read ahead, never waited for."""
