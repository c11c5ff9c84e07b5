"""Commands on agents and their caches."""
