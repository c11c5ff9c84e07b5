"""Use cases of batches and files: accept, drive to the end, store files."""
