"""``multipart/form-data`` (RFC 7578) from strangers: fields and at most one file, bounded."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from email.message import Message
from typing import Final
from urllib.parse import unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

from domain.errors import InvalidRequest

#: Parts of one body, and bytes of the head of each; real uploads have four parts.
PARTS_MAX: Final = 32
PART_HEAD_BYTES_MAX: Final = 4096
FIELD_BYTES_MAX: Final = 4096
#: RFC 2046 §5.1.1.
BOUNDARY_CHARS_MAX: Final = 70
#: White space after a boundary, which the parser reads byte by byte.
PADDING_BYTES_MAX: Final = 64
#: Of a name in the extended form; any other one would choose a codec of Python by its name.
_NAME_CHARSETS: Final = frozenset({"utf-8", "us-ascii"})

# It warns of each form that is not valid; the client gets that as the error of its request.
logging.getLogger("python_multipart.multipart").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A form.

    Attributes:
        fields: Texts by name; of a repeated one the last.
        file: Content of the part named ``file``.
    """

    fields: dict[str, str] = field(default_factory=dict)
    file: bytes
    filename: str


def parse_upload(content_type: str, body: bytes) -> Upload:
    """Read a form with one file in the part named ``file``.

    Args:
        content_type: The header, with the boundary.

    Raises:
        InvalidRequest: It is no such form, or something in it is larger than its limit.
    """
    boundary = _boundary(content_type)
    _check_boundaries(b"\r\n--" + boundary, body)
    form = _Form(boundary)
    form.read(body)
    if form.file is None:
        raise InvalidRequest("a part named file with the content is missing", field="file")
    return Upload(fields=form.fields, file=form.file, filename=form.filename)


def _boundary(content_type: str) -> bytes:
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise InvalidRequest("send the file as multipart/form-data with a boundary")
    if not 0 < len(boundary) <= BOUNDARY_CHARS_MAX or not boundary.isascii():
        raise InvalidRequest("the boundary of the form is not valid")
    return boundary.encode()


def _check_boundaries(delimiter: bytes, body: bytes) -> None:
    """Refuse what would keep the parser busy: it walks through each boundary byte by byte."""
    if body.count(delimiter) > PARTS_MAX + 1:
        raise InvalidRequest(f"the form has more than {PARTS_MAX} parts")
    if re.search(re.escape(delimiter) + rb"[ \t]{%d}" % (PADDING_BYTES_MAX + 1), body):
        raise InvalidRequest("a boundary of the form is not the end of its line")


class _Form:
    """The fields and the file of a form, from the callbacks of the parser."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.file: bytes | None = None
        self.filename = ""
        self._headers = Message()
        self._header = b""
        self._head_bytes = 0
        self._content: list[memoryview] = []
        self._parts = 0
        self._is_whole = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": self._name_header,
                "on_header_value": self._add_header,
                "on_part_data": self._add_content,
                "on_part_end": self._end,
                "on_end": self._finish,
            },
            max_header_count=PART_HEAD_BYTES_MAX,
            max_header_size=PART_HEAD_BYTES_MAX,
        )

    def read(self, body: bytes) -> None:
        """Read the whole body at once, so that each name, value and content is one slice of it."""
        try:
            self._parser.write(body)
        except FormParserError as error:
            raise InvalidRequest(f"the form cannot be read: {error}") from error
        if not self._is_whole:
            raise InvalidRequest("the form does not end with its boundary")

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise InvalidRequest(f"the form has more than {PARTS_MAX} parts")
        self._headers, self._head_bytes, self._content = Message(), 0, []

    def _name_header(self, data: bytes, start: int, end: int) -> None:
        self._header = data[start:end]

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._head_bytes += len(self._header) + end - start
        if self._head_bytes > PART_HEAD_BYTES_MAX:
            raise InvalidRequest("a part of the form has no readable head")
        self._headers[self._header.decode()] = data[start:end].decode("utf-8", "replace")

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        self._content.append(memoryview(data)[start:end])

    def _end(self) -> None:
        headers, content = self._headers, self._content
        name = headers.get_param("name", header="content-disposition")
        if headers.get_content_disposition() != "form-data" or not isinstance(name, str):
            raise InvalidRequest("a part of the form has no name")
        encoding = headers.get("content-transfer-encoding", "binary").lower()
        if encoding not in {"binary", "8bit", "7bit"}:
            raise InvalidRequest("send the parts of the form as they are", field=name)
        filename = _filename(headers)
        if name != "file":
            self.fields[name] = _text(name, content)
        elif self.file is not None:
            raise InvalidRequest("given more than once", field="file")
        else:
            self.file, self.filename = b"".join(content), filename or "file"

    def _finish(self) -> None:
        self._is_whole = True


def _filename(headers: Message) -> str:
    """Return the last part of the name: some clients send a whole path.

    Raises:
        InvalidRequest: The name is in the extended form of RFC 8187, and not in UTF-8.
    """
    name = headers.get_param("filename", "", header="content-disposition")
    if isinstance(name, tuple):
        charset, _language, octets = name
        if (charset or "").lower() not in _NAME_CHARSETS:
            raise InvalidRequest("has a filename that is not in UTF-8", field="file")
        try:
            name = octets.encode("latin-1").decode()
        except UnicodeError as error:
            raise InvalidRequest("has a filename that is not UTF-8", field="file") from error
    # Browsers and HTTP clients write quotes and line ends as %22, %0D and %0A.
    return unquote(name).replace("\\", "/").rpartition("/")[2][:255]


def _text(name: str, content: list[memoryview]) -> str:
    if sum(map(len, content)) > FIELD_BYTES_MAX:
        raise InvalidRequest(f"is longer than {FIELD_BYTES_MAX} bytes", field=name)
    try:
        return b"".join(content).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("is not UTF-8", field=name) from error
