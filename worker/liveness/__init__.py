"""Whether the worker lives: its pulse, its periodic tasks, and steps that do not return."""
