"""Spans of requests and attempts, and their export; nothing here runs while tracing is off."""
