"""Sums of ended jobs per hour, model and agent, and histograms of their durations."""
