"""Webhook deliveries: names, limits, retry times and allowed targets."""
