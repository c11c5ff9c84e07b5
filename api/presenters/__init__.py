"""Jobs, agents, responses, batches and files as the JSON that clients read; loads nothing."""
