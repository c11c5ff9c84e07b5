"""An agent as a fold over its events, and the lists of agents."""
