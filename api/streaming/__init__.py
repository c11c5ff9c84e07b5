"""From the items of a job to one reader: subscription, buffer, backfill from the log."""
