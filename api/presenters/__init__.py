"""Jobs, agents, batches, files and the operations themselves as the JSON that clients read."""
