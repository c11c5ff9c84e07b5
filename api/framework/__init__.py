"""Requests and replies in the types of Robyn, the composition of the process, and its life."""
