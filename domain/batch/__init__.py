"""A batch as a fold over its events, its files and lines, and the driver of batches."""
