"""Models found, loaded and identified."""
