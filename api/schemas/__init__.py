"""Types of the JSON bodies of requests and replies; parsers and presenters convert them."""
