"""Operations of the API: each parses a request, uses the app and replies, without Robyn."""
