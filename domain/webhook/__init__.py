"""Webhook deliveries: names, limits, retry times, allowed targets, and the sending."""
