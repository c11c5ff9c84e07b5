"""Start and signs of life of the processes that the supervisor starts."""
