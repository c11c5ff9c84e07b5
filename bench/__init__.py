"""Measurements of the product. Each module's docstring names its question and its baseline."""
