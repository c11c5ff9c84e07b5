"""One report over the benchmarks: runs them, keeps their figures, and writes the page."""
