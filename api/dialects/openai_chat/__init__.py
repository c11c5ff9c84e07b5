"""OpenAI Chat Completions, and what it shares with the older Completions."""
