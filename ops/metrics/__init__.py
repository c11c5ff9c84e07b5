"""Metric families and their exposition, and counters that survive their process."""
