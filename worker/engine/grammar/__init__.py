"""Constrained decoding: grammars of answers and tool calls. No MLX."""
