"""Parse, call a use case, reply: plain functions that know nothing of Robyn."""
