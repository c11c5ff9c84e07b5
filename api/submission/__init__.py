"""From a parsed request to a job: deduplication, history matching, admission."""
