"""Starts the broker, the worker and the api, keeps them alive and stops them in order."""
