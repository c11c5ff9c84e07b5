"""The type of a reply is what its endpoint returns, unless that is a whole reply."""

from __future__ import annotations

from typing import Any

import pytest

from api.http.messages import Deleted, Reply, StreamReply
from api.http.operation import Endpoint, Operation


def body() -> Deleted:
    """Return a body."""
    raise NotImplementedError


def whole() -> Reply:
    """Return a whole reply."""
    raise NotImplementedError


def either() -> Reply | StreamReply:
    """Return one of two whole replies."""
    raise NotImplementedError


def body_or_stream() -> Deleted | StreamReply:
    """Return a body or a whole reply."""
    raise NotImplementedError


@pytest.mark.parametrize(
    ("endpoint", "named", "expected"),
    [
        (body, None, Deleted),
        (whole, None, None),
        (either, None, None),
        (whole, Deleted, Deleted),
        (body_or_stream, None, Deleted),
    ],
)
def test_the_type_of_the_reply_follows_from_the_endpoint(
    endpoint: Endpoint, named: Any, expected: Any
) -> None:
    assert Operation("GET /x", endpoint, reply=named).returns is expected
