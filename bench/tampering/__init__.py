"""Changes a recorded log at random places and checks that each change is found."""
