"""The numbered experiments: each is a module that prints its question's answer in Markdown."""
