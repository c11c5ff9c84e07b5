"""The models, their swaps, and what operators change."""
