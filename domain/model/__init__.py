"""The models that can be served, to which a request belongs, and swaps between them."""
