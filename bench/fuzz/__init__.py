"""Invalid requests by the thousand: every answer is a typed error, and memory stays flat."""
