"""Recorded events, their codec, signed checkpoints, folded streams, the ports of the log."""
