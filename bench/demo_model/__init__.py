"""Reproducible training of the demo model on synthetic chat."""
