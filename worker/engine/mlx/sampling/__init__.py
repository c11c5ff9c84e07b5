"""Sampling, logit masks and log-probabilities of a batch."""
