"""The header fields that every reply gets."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from http.client import responses
from types import MappingProxyType
from typing import Final

from api.http.messages import Reply, StreamReply
from api.http_server.exchange import Exchange

#: Response header with the trace id.
TRACE_HEADER: Final = "x-semantic-trace"
#: Response header with the id of the request; a reply without it is Robyn's own.
REQUEST_ID_HEADER: Final = "request-id"
#: Statuses of replies without a body.
BODILESS: Final = frozenset({204, 304})
#: Browsers neither guess the type of a reply nor give it to pages of other sites without CORS.
_BROWSER_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}
)


def reply_headers(
    reply: Reply | StreamReply, exchange: Exchange, more: Mapping[str, str]
) -> dict[str, str]:
    """Return the header fields of a reply by lower-case name, without those of its framing.

    Args:
        reply: Its own fields win over those for browsers.
        exchange: Its names are sent with the reply.
        more: Fields for the client's browser, which win over those of the reply.
    """
    headers = {
        **_BROWSER_HEADERS,
        **{name.lower(): value for name, value in reply.headers.items()},
        **more,
        REQUEST_ID_HEADER: exchange.request_id,
        TRACE_HEADER: exchange.trace.trace_id,
    }
    if reply.status not in BODILESS:
        headers["content-type"] = reply.content_type
    return headers


def whole_reply(
    reply: Reply, exchange: Exchange, more: Mapping[str, str], *, bodiless: bool, close: bool
) -> bytes:
    """Return the bytes of a reply that does not come from Robyn.

    Args:
        reply: Without header fields of a client's choice.
        exchange: As in ``reply_headers``.
        more: As in ``reply_headers``.
        bodiless: The request was HEAD.
        close: The connection ends after this reply.
    """
    headers = reply_headers(reply, exchange, more)
    headers["date"] = formatdate(usegmt=True)
    if reply.status not in BODILESS:
        headers["content-length"] = str(len(reply.body))
    if close:
        headers["connection"] = "close"
    lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if bodiless else head + reply.body
