"""An agent as a fold over its events, and the views that list agents."""
