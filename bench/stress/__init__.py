"""Cases of heavy and of lasting load on a whole service, each with targets and a verdict."""
