"""``semantic top``: what the service does now, in a terminal; Textual is imported on use only."""
