"""Who comes in: names of this host, origins, keys, and how often."""
