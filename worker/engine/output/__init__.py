"""From text to reasoning, answer and tool calls; stop sequences. No MLX."""
