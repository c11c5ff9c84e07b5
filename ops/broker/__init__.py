"""Redis: its private process, stream items, the job queue, control messages, pulses."""
