from __future__ import annotations

import tracemalloc
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http.multipart import FIELD_BYTES_MAX, PADDING_BYTES_MAX, PARTS_MAX, parse_upload
from domain.errors import InvalidRequest

FORM = "multipart/form-data; boundary=b"


def form_of(content: bytes, filename: str, fields: dict[str, str]) -> tuple[str, bytes]:
    request = httpx.Request(
        "POST", "http://127.0.0.1/", files={"file": (filename, content)}, data=fields
    )
    return request.headers["content-type"], request.read()


@given(
    st.binary(max_size=200), st.dictionaries(st.sampled_from(["a", "b[c]"]), st.text(max_size=9))
)
def test_what_a_client_packs_comes_out_as_it_was(content: bytes, fields: dict[str, str]) -> None:
    upload = parse_upload(*form_of(content, "in.jsonl", fields))
    assert (upload.file, upload.filename, upload.fields) == (content, "in.jsonl", fields)


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ('a "b".jsonl', 'a "b".jsonl'),
        ("../../etc/passwd", "passwd"),
        ("C:\\dir\\x.jsonl", "x.jsonl"),
        ("é.jsonl", "é.jsonl"),
    ],
)
def test_filename_is_a_name_and_no_path(given_name: str, kept: str) -> None:
    assert parse_upload(*form_of(b"x", given_name, {})).filename == kept


def part(head: str, content: str = "x") -> bytes:
    return f"--b\r\n{head}\r\n\r\n{content}\r\n".encode()


FILE_HEAD = 'content-disposition: form-data; name="file"; filename="f"'
FILE = part(FILE_HEAD)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", FILE + b"--b--\r\n"),
        ("multipart/form-data; boundary=" + "b" * 71, FILE + b"--b--\r\n"),
        (FORM, b""),
        (FORM, FILE),
        (FORM, b"--b--\r\n"),
        (FORM, FILE + FILE + b"--b--\r\n"),
        (FORM, part("content-disposition: form-data") + b"--b--\r\n"),
        (FORM, part('content-disposition: attachment; name="file"') + b"--b--\r\n"),
        (FORM, b"--b\r\nno head at all\r\n--b--\r\n"),
        (FORM, part("x: " + "y" * 5000) + b"--b--\r\n"),
        (FORM, FILE * (PARTS_MAX + 1) + b"--b--\r\n"),
        (FORM, part(FILE_HEAD, "\r\n--bx" * (PARTS_MAX + 2)) + b"--b--\r\n"),
        (FORM, FILE + b"--b" + b" \t" * PADDING_BYTES_MAX + b"\r\n--b--\r\n"),
        (
            FORM,
            FILE
            + part('content-disposition: form-data; name="a"', "y" * (FIELD_BYTES_MAX + 1))
            + b"--b--\r\n",
        ),
        (
            FORM,
            part('content-disposition: form-data; name="file"\r\ncontent-transfer-encoding: base64')
            + b"--b--\r\n",
        ),
    ],
)
def test_form_that_is_none_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_upload(content_type, body)


@pytest.mark.parametrize(
    "extended",
    [
        "filename*=idna''%ff",
        "filename*=idna''..a",
        "filename*=undefined''%ff",
        "filename*=\x00''a",
        "filename*0*=idna''..; filename*1=a",
        "filename*=utf-8''%ff",
        "filename*=utf-8''\u2603",
        "filename*=''a",
    ],
)
def test_filename_in_a_charset_that_is_not_utf_8_is_refused(extended: str) -> None:
    body = part(f'content-disposition: form-data; name="file"; {extended}') + b"--b--\r\n"
    with pytest.raises(InvalidRequest):
        parse_upload(FORM, body)


@given(st.sampled_from(["filename", "name", "x"]), st.text(max_size=12), st.text(max_size=12))
def test_no_extended_parameter_breaks_the_reader(name: str, charset: str, value: str) -> None:
    head = f"content-disposition: form-data; name=\"file\"; {name}*={charset}''{value}"
    with suppress(InvalidRequest):
        parse_upload(FORM, part(head.encode("utf-8", "replace").decode()) + b"--b--\r\n")


def test_filename_in_the_extended_form_is_read_as_utf_8() -> None:
    body = part("content-disposition: form-data; name=\"file\"; filename*=UTF-8''%C3%A9.jsonl")
    assert parse_upload(FORM, body + b"--b--\r\n").filename == "é.jsonl"


@given(st.lists(st.sampled_from([b"--b", b"--", b"\r\n", b"\r\n\r\n", b"x", FILE, b":", b"\x00"])))
def test_no_body_breaks_the_reader(pieces: list[bytes]) -> None:
    with suppress(InvalidRequest):
        parse_upload(FORM, b"".join(pieces))


def test_content_that_begins_like_a_boundary_stays_content() -> None:
    content = "a\r\n--\r\n--c\r\n--bx\r\n-"
    assert parse_upload(FORM, part(FILE_HEAD, content) + b"--b--\r\n").file == content.encode()


def test_a_file_is_copied_once() -> None:
    content = b"x" * (1 << 22)
    content_type, body = form_of(content, "f", {"purpose": "batch"})
    tracemalloc.start()
    try:
        parse_upload(content_type, body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1.5 * len(content)
