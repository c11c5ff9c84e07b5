"""What operators read and change: models, events, figures, health, and the OpenAPI document."""
