"""The worker process: takes jobs from the queue and generates tokens. Never imports ``api``."""
