"""Running sequences, each with caches of its own: prefill, and decode of rows of unequal length."""
