"""Events of caches and of the worker process, appended without delaying their senders."""
