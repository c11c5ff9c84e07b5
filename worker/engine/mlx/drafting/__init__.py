"""Drafted tokens: from a row's own text or a small model, verified in the pass of the rows."""
