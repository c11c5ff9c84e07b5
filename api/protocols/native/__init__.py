"""Jobs (``/v1/jobs``) and agents (``/v1/agents``): parsers and encoders."""
