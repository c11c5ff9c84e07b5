"""The documentation site: its configuration, and the pages that are generated from the code."""
