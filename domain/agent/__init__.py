"""An agent as a fold over its events, the lists of agents, and what is done with agents."""
