"""Which sequence joins the batch next, and how much of a prompt one step computes. Pure."""
