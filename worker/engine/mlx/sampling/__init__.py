"""Draws of a batch: rules, penalties, masks and log-probabilities of each row."""
