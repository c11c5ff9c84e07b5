"""HTTP values without a socket or a framework: requests, replies, headers, JSON bodies, SSE."""
