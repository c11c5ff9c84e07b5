"""``/v1/events``: the events, the check of their chain, and the state after any of them."""
