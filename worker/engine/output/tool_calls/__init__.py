"""Readers of tool calls, one for each way in which model families write them."""
