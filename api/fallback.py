"""Replies to requests without a route: 404, 405 with ``allow``, and OPTIONS."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from api.errors import TransportError
from api.http.messages import Reply, Route


class RouteTable:
    """Replies to requests that have no route.

    Args:
        routes: All routes.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._patterns = [(_segments(route.pattern), route.method) for route in routes]

    def allowed(self, route_path: str) -> tuple[str, ...]:
        """Return the methods of a path, sorted; none where the path does not exist.

        Args:
            route_path: Encoded, as ``api.http_server.request.RequestTarget`` spells it.
        """
        path = [unquote(segment) for segment in _segments(route_path)]
        methods = {method for pattern, method in self._patterns if _matches(pattern, path)}
        if not methods:
            return ()
        if "GET" in methods:
            methods.add("HEAD")
        return tuple(sorted(methods | {"OPTIONS"}))

    def unrouted(self, method: str, route_path: str) -> Reply:
        """Reply to a request without a route.

        Raises:
            TransportError: 404, or 405 with ``allow``.
        """
        if method == "OPTIONS" and route_path in ("*", "%2A"):
            every = {method for _, method in self._patterns} | {"HEAD", "OPTIONS"}
            return Reply(status=204, headers={"allow": ", ".join(sorted(every))})
        methods = self.allowed(route_path)
        if not methods:
            raise TransportError(404, "not_found", "there is nothing at this path")
        allow = {"allow": ", ".join(methods)}
        if method == "OPTIONS":
            return Reply(status=204, headers=allow)
        message = f"this path answers {', '.join(methods)}"
        raise TransportError(405, "method_not_allowed", message, headers=allow)


def _segments(path: str) -> list[str]:
    return path.removeprefix("/").rstrip("/").split("/")


def _matches(pattern: list[str], path: list[str]) -> bool:
    return len(pattern) == len(path) and all(
        (bool(part) if wanted.startswith("{") else wanted == part)
        for wanted, part in zip(pattern, path, strict=True)
    )
