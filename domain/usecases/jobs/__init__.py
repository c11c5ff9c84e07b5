"""Use cases of one job: submit, run an attempt, cancel, retry, expire, reconcile."""
