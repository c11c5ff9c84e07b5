"""Measurements, each named by the question that it answers."""
