"""Bodies as clients send and read them; they know nothing of the domain's values."""
