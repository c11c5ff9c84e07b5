"""Queue order, batch window and prefill pace. Pure."""
