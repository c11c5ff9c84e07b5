"""Vectors of texts, computed between the steps of the batch; never takes memory of contexts."""
