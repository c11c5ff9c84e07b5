"""Readers of tool calls, one per syntax."""
