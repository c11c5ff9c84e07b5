"""Constrained decoding: masks of allowed tokens, by the grammars of schemas and tools. No MLX.

``*constraint*.py`` make the constraint of an answer, ``*_grammar.py`` write grammars in Lark, and
``guidance.py`` follows them with llguidance.
"""
