"""Constrained decoding: masks of allowed tokens, by the grammars of schemas and tools. No MLX.

``ports.py`` defines ``Constraint``, ``guidance.py`` follows one grammar with llguidance, the
``*constraint*.py`` modules make the constraint of an answer, and the ``*_grammar.py`` modules write
grammars in the library's Lark dialect.
"""
