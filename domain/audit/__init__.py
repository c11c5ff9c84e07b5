"""What the log answers afterwards: timelines, past states, replays, and cache misses."""
