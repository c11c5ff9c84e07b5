"""Direct agent requests and async jobs: pure parsers and encoders."""
