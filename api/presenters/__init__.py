"""Jobs, agents, responses and cache diagnostics as the JSON that clients read."""
