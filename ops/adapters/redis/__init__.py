"""Redis: stream items, the job queue, control messages, token counts."""
