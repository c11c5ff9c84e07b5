"""Sums of ended jobs, histograms of their durations, and the shares of keys in common limits."""
