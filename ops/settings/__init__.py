"""Groups of settings: each field has a default, limits and a description; see ``settings``."""
