"""Power cuts: what processes write and sync, the disk at any moment of it, and the promises."""
