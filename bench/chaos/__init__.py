"""Mixed work on a running service while its parts are killed, and a judge of what came of it."""
