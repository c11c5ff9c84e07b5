"""Images in prompts: read and encoded by mlx-vlm, their vectors read by the network of mlx-lm."""
