"""Webhook deliveries: names, signatures, retry times and allowed targets."""
