"""The models that can be served, and to which of them a request belongs."""
