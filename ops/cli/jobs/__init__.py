"""Commands on jobs, batches, webhooks and replays."""
