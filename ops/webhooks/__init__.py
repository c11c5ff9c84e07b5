"""Webhook storage, signing secret and HTTP sender."""
