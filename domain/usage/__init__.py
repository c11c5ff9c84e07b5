"""Sums of ended jobs, and histograms of their durations."""
