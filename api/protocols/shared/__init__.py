"""Code of at least two dialects: the parsed request, the assembled answer, tools, signatures."""
