"""Prompt-lookup speculation: drafts of the next tokens, copied from the prompt or the answer."""
