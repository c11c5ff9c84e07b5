"""What handlers read beside the domain: agents, responses, health, the overview and metrics."""
