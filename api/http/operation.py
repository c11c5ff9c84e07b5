"""One operation of the API; routing and the OpenAPI document both derive from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from api.http.messages import Access, Reply, StreamReply
from api.http.parameters import Parameter

#: A coroutine function of the app and a request.
Endpoint = Callable[..., Awaitable[Reply | StreamReply]]


@dataclass(frozen=True, slots=True)
class Operation:
    """A method on a path.

    Attributes:
        route: Method and path pattern, such as ``GET /v1/jobs/{job_id}``.
        endpoint: Answers a request.
        id: ``operationId`` in the document.
        summary: One line.
        parameters: All that ``endpoint`` reads, and those in the path.
        body: Type of the JSON body; ``None`` where there is none.
        body_media: Media type of the body.
        takes_upload: Whether the body may be as large as an upload; only without ``{…}`` parts.
        body_required: Whether a request without a body is refused.
        example: A body that works.
        reply: Type of the JSON reply; ``None`` where there is none.
        status: Status of the reply to a request that succeeds.
        may_be_done: Whether 200 with the same reply means that the work has ended already.
        media: Media type of a reply that is not JSON.
        is_streamed: Whether the reply may be a stream of events.
        has_links: Whether the document links the reply to the operations on its job.
        stops_work: Whether later requests of all clients wait or are refused.
        access: What it needs of a key; ``None``: ``READ`` for GET, ``CHANGE`` for other methods.
        responses: Descriptions of further responses by status, for this operation alone.
    """

    route: str
    endpoint: Endpoint
    _: KW_ONLY
    id: str
    summary: str
    parameters: tuple[Parameter[Any], ...] = ()
    body: Any = None
    body_media: str = "application/json"
    takes_upload: bool = False
    body_required: bool = True
    example: Mapping[str, Any] | None = None
    reply: Any = None
    status: int = 200
    may_be_done: bool = False
    media: str | None = None
    is_streamed: bool = False
    has_links: bool = False
    stops_work: bool = False
    access: Access | None = None
    responses: Mapping[int, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Return the method in upper case."""
        return self.route.partition(" ")[0]

    @property
    def needs(self) -> Access:
        """Return what a key needs for the operation."""
        if self.access is not None:
            return self.access
        return Access.READ if self.method == "GET" else Access.CHANGE

    @property
    def path(self) -> str:
        """Return the path pattern."""
        return self.route.partition(" ")[2]
