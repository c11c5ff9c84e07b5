"""What the dialects share: the parsed request, the assembled answer, signatures."""
