"""What operators change while the engine runs, and the workers as other parts see them."""
