"""Recorded events, their JSON codec, signed checkpoints, and the ports of the event log."""
