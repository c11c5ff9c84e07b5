"""What clients of this service need: variables, configuration files and lines to paste."""
