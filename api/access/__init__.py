"""Who may send a request: host names, origins, API keys, rate limits, webhook URLs."""
