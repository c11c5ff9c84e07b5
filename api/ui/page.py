"""The routes of the page: ``/ui`` and one fixed route for each static file.

The files hold no secret and no data of the service; what the page shows comes from the public API,
with the key of its reader. Since each file has a route of its own, no path of a request is ever
used to open a file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from api.http.messages import Handler, Reply, Request, Route

_STATIC: Final = Path(__file__).parent / "static"
_INDEX: Final = "index.html"
_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        ".css": "text/css; charset=utf-8",
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".mjs": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
    }
)
#: The spellings of the page's paths. No segment begins with a dot or has a percent sign, so none
#: of them leads to another route.
_PATH: Final = re.compile(r"/ui/?|/ui/static(?:/[a-z0-9][a-z0-9._-]*)+", re.IGNORECASE)

#: Only files of this service run, load and are connected to; no text becomes code or markup.
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cache-control": "no-cache",
        "content-security-policy": CONTENT_POLICY,
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """A static file.

    Attributes:
        name: Its path below the directory of static files, with ``/``.
        content_type: Its media type.
    """

    name: str
    body: bytes
    content_type: str

    @property
    def etag(self) -> str:
        """Return the entity tag, which changes with the bytes."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:32]}"'


def is_page_path(path: str) -> bool:
    """Whether a path, as sent and without its query, can only be one of the page's files."""
    return _PATH.fullmatch(path) is not None


def wants_page(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a request for the root comes from a browser that shows a page."""
    return path == "/" and "text/html" in headers.get("accept", "")


def read_page_files() -> tuple[PageFile, ...]:
    """Return the static files of the package, sorted by name."""
    return tuple(
        PageFile(
            name=path.relative_to(_STATIC).as_posix(),
            body=path.read_bytes(),
            content_type=_TYPES[path.suffix],
        )
        for path in sorted(_STATIC.rglob("*"))
        if path.suffix in _TYPES
    )


def page_routes() -> tuple[Route, ...]:
    """Return the routes of the page; they need no service."""
    return tuple(
        Route(method="GET", pattern=_pattern(file.name), handler=_handler(file))
        for file in read_page_files()
    )


def _pattern(name: str) -> str:
    return "/ui" if name == _INDEX else f"/ui/static/{name}"


def _handler(file: PageFile) -> Handler:
    etag = file.etag
    headers = {**_HEADERS, "etag": etag}

    async def handle(request: Request) -> Reply:
        if file.name == _INDEX and request.path.endswith("/"):
            # The addresses in the page are relative to a path without the final slash.
            return Reply(status=308, headers={"location": "../ui"})
        if etag in request.headers.get("if-none-match", ""):
            return Reply(status=304, headers=headers)
        return Reply(headers=headers, body=file.body, content_type=file.content_type)

    return handle
