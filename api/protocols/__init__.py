"""Dialects on the wire: request bodies to domain requests, stream items to events and replies.

Everything here is pure. Handlers live in ``api.routes``, JSON shapes in ``api.schemas``.
"""
