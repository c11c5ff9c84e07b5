"""A hub on loopback that serves directories, with ranges and cut connections."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "d" * 40
#: Size from which the hub stores a file by content.
LFS_BYTES = 1024
_PIECE = 64 * 1024


@dataclass(kw_only=True)
class Hub:
    """What the hub serves, and what was requested.

    Attributes:
        models: Directories by hub id.
        revisions: Names of the one commit.
        gated: Ids whose files need a token.
        cuts: Bytes of large files after which each of the next responses ends early.
        damaged: Whether large files arrive with other bytes.
        sent: Ranges of large files that were requested: name, first byte.
    """

    models: dict[str, Path] = field(default_factory=dict)
    revisions: tuple[str, ...] = ("main", "v1", COMMIT)
    gated: frozenset[str] = frozenset()
    cuts: list[int] = field(default_factory=list)
    damaged: bool = False
    sent: list[tuple[str, int]] = field(default_factory=list)
    requested: list[str] = field(default_factory=list)
    paused: threading.Event | None = None


@contextmanager
def local_hub(hub: Hub) -> Iterator[str]:
    """Yield the URL of a hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        del format, args

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requested.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts == ["api", "models"]:
            words = parse_qs(urlsplit(self.path).query).get("search", [""])[0].lower()
            found = [name for name in self.hub.models if words in name.lower()]
            self._json([{"id": name, "downloads": 7} for name in found])
        elif parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:])
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._error(HTTPStatus.NOT_FOUND, "EntryNotFound")

    def _api(self, hub_id: str, rest: list[str]) -> None:
        if not self._allowed(hub_id, rest[1] if len(rest) > 1 else "main"):
            return
        files = [_listed(self.hub.models[hub_id], path) for path in _files(self.hub.models[hub_id])]
        if rest[:1] == ["tree"]:
            self._json(files)
            return
        siblings = [{"rfilename": one["path"], **one, "blobId": one["oid"]} for one in files]
        self._json({"id": hub_id, "sha": COMMIT, "siblings": siblings, "private": False})

    def _allowed(self, hub_id: str, revision: str) -> bool:
        if hub_id not in self.hub.models:
            self._error(HTTPStatus.UNAUTHORIZED, "RepoNotFound")
        elif hub_id in self.hub.gated:
            self._error(HTTPStatus.FORBIDDEN, "GatedRepo")
        elif revision not in self.hub.revisions:
            self._error(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        else:
            return True
        return False

    def _file(self, hub_id: str, revision: str, name: str) -> None:
        if not self._allowed(hub_id, revision):
            return
        path = self.hub.models[hub_id] / name
        if not path.is_file():
            self._error(HTTPStatus.NOT_FOUND, "EntryNotFound")
            return
        listed, content = _listed(self.hub.models[hub_id], path), path.read_bytes()
        large = "lfs" in listed
        if large and self.hub.damaged:
            content = bytes(len(content))
        first = int(self.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK)
        self.send_header("etag", f'"{listed["lfs"]["oid"] if large else listed["oid"]}"')
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("content-length", str(len(content) - first))
        if first:
            self.send_header("content-range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = None
        if large:
            self.hub.sent.append((name, first))
            cut = self.hub.cuts.pop(0) if self.hub.cuts else None
        self._send(content[first:], cut)

    def _send(self, content: bytes, cut: int | None) -> None:
        for at in range(0, len(content), _PIECE):
            if cut is not None and at >= cut:
                if self.hub.paused is not None:
                    self.hub.paused.wait()
                self.close_connection = True
                return
            self.wfile.write(content[at : at + _PIECE])
            self.wfile.flush()

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: HTTPStatus, code: str) -> None:
        self.send_response(status)
        self.send_header("x-error-code", code)
        self.send_header("x-error-message", code)
        self.send_header("content-length", "0")
        self.end_headers()


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _listed(directory: Path, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    listed: dict[str, Any] = {
        "type": "file",
        "path": str(path.relative_to(directory)),
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),  # noqa: S324 - as the hub names small files
    }
    if len(content) >= LFS_BYTES and path.suffix == ".safetensors":
        digest = hashlib.sha256(content).hexdigest()
        listed["lfs"] = {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 1}
    return listed
