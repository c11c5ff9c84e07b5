"""``/v1/agents``: agents that keep their own history."""
