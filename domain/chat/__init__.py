"""The canonical request and its answer: messages, stream items, log-probabilities, engine ports."""
