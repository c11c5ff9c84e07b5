"""Weights, tokenizer and chat template of the demo model, shipped as package data."""
