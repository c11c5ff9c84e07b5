"""The numbered experiments. Each module prints the answer to its question in Markdown."""
