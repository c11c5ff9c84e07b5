"""The static files of the page: what they may contain, and how they are served."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path, PurePosixPath

import pytest

import api.ui.page
from api.http.messages import Reply, Request, StreamReply
from api.ui.page import CONTENT_POLICY, PageFile, is_page_path, page_routes, read_page_files

STATIC = Path(api.ui.page.__file__).parent / "static"
VENDOR = STATIC / "vendor"
LINES_MAX = 300
OWN = [file for file in read_page_files() if not file.name.startswith("vendor/")]
_IMPORT = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"']+)["']""")


def fetch(path: str, **headers: str) -> Reply:
    handler = next(route.handler for route in page_routes() if route.pattern == path.rstrip("/"))

    async def ask() -> Reply | StreamReply:
        return await handler(Request(id="r", method="GET", path=path, headers=headers))

    reply = asyncio.run(ask())
    assert isinstance(reply, Reply)
    return reply


def test_every_file_is_served_with_the_policy_under_a_path_that_needs_no_key() -> None:
    for route in page_routes():
        reply = fetch(route.pattern)
        assert reply.headers["content-security-policy"] == CONTENT_POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.body
        assert is_page_path(route.pattern), route.pattern
    assert fetch("/ui").content_type == "text/html; charset=utf-8"


def test_the_policy_allows_neither_inline_code_nor_other_servers() -> None:
    assert CONTENT_POLICY.startswith("default-src 'none'")
    assert "unsafe" not in CONTENT_POLICY
    assert "*" not in CONTENT_POLICY
    assert "http" not in CONTENT_POLICY


def test_a_file_that_did_not_change_is_not_sent_again() -> None:
    first = fetch("/ui/static/app.js")
    again = fetch("/ui/static/app.js", **{"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


def test_the_page_with_a_final_slash_leads_to_the_one_without() -> None:
    reply = fetch("/ui/")
    assert (reply.status, reply.headers["location"]) == (308, "../ui")


def test_vendored_files_are_the_pinned_ones_and_have_licences() -> None:
    pins = json.loads((VENDOR / "pins.json").read_text())["files"]
    found = {path.name for path in VENDOR.iterdir()} - {"pins.json"}
    assert found == set(pins)
    for name, pin in pins.items():
        body = (VENDOR / name).read_bytes()
        assert hashlib.sha256(body).hexdigest() == pin["sha256"], name
        for before, after in reversed(pin["edits"]):
            body = (
                body.replace(after.encode(), before.encode(), 1)
                if after
                else body + before.encode()
            )
        assert hashlib.sha256(body).hexdigest() == pin["package_sha256"], name
        assert f"{pin['package']}.LICENSE.txt" in found


def test_only_known_kinds_of_files_are_there() -> None:
    served = {file.name for file in read_page_files()}
    there = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert there - served == {"vendor/pins.json"}


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name)
def test_files_are_short_and_have_no_inline_code(file: PageFile) -> None:
    text = file.body.decode()
    assert len(text.splitlines()) <= LINES_MAX
    for forbidden in ("innerHTML", "dangerouslySetInnerHTML", "eval(", "new Function", "<style"):
        assert forbidden not in text
    assert not re.search(r"https?://(?!www\.w3\.org/)", text), "the page works offline"
    if file.name == "index.html":
        assert not re.search(r"<script(?![^>]* src=)|\bon\w+=|\bstyle=", text)


@pytest.mark.parametrize(
    "file", [one for one in OWN if one.name.endswith(".js")], ids=lambda file: file.name
)
def test_imports_name_files_that_exist(file: PageFile) -> None:
    names = {one.name for one in read_page_files()}
    for wanted in _IMPORT.findall(file.body.decode()):
        assert wanted.startswith("."), wanted
        parts: list[str] = []
        for part in (PurePosixPath(file.name).parent / wanted).parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        assert "/".join(parts) in names, wanted


def test_light_colours_are_the_same_by_choice_and_by_system() -> None:
    blocks = re.findall(
        r"color-scheme: light;([^}]*)\}", (STATIC / "styles/tokens.css").read_text()
    )
    by_system, by_choice = (re.findall(r"--[\w-]+: [^;]+;", block) for block in blocks)
    assert by_system == by_choice
