"""Which URLs a request may name as its webhook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from api.http.bodies import WebhookBody
from domain.errors import InvalidRequest
from domain.webhook.targets import parse_target, refuse_literal

_FIELD: Final = "webhook.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookPolicy:
    """Rules for the webhooks of requests.

    Attributes:
        from_requests: Whether a request may name a webhook.
        allow_hosts: Hosts that may have any address.
    """

    from_requests: bool = True
    allow_hosts: tuple[str, ...] = ()

    def url_of(self, wire: WebhookBody | None) -> str | None:
        """Return the URL that a request names, ``None`` if it names none.

        A host name is resolved, and its address checked, at each delivery.

        Raises:
            InvalidRequest: The URL may not be called.
        """
        if wire is None:
            return None
        if not self.from_requests:
            raise InvalidRequest("requests may not name webhooks here", field=_FIELD)
        try:
            refuse_literal(parse_target(wire.url), self.allow_hosts)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=_FIELD) from error
        return wire.url
