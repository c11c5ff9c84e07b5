"""Pure translation: wire request to domain command, stream item to wire event."""
