"""From a request to the token ids of its prompt."""
