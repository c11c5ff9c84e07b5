"""Compares this service with other servers of the same model: caching, latency and throughput."""
