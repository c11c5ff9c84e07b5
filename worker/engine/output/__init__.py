"""Decoded text to parts of the answer: reasoning, text, tool calls, stop sequences. No MLX.

``output_parser.py`` defines the parts and the parser of tagged output; ``channel_parser.py``
parses answers of several messages (gpt-oss).
"""
