"""Constrained decoding: masks of allowed tokens, by the grammars of schemas and tools. No MLX.

``ports.py`` defines ``Constraint`` and ``Matcher``; the ``*constraint*.py`` modules make the
constraint of an answer, and the ``*_grammar.py`` modules write Lark grammars for llguidance.
"""
