"""Signs of life between the supervisor and the processes that it starts."""
