"""One service for each kind of request, and their composition from the ports of the process."""
