"""``/v1/agents``: agents that keep their own history, and the cached contexts of all agents."""
