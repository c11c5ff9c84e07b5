"""Tests of the whole service.

A package, so that what its tests share ends with the last of them: an idle service takes 1% of a
processor.
"""
