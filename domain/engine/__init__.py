"""Values of the engine that operators change while it runs, and the admission of jobs."""
