"""Drafted tokens: guesses, what a pass over them takes, and how many are worth it."""
