"""From the items of a job to one connection: feed, readers, answers."""
