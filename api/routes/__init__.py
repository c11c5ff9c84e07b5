"""Operations of the API: each parses a request, calls a service and replies, without Robyn."""
