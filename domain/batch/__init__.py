"""Work in bulk: a batch as a fold, its files, lines and driver, and schedules of jobs."""
