"""``multipart/form-data`` (RFC 7578) from strangers: fields and at most one file, bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from typing import Final
from urllib.parse import unquote

from domain.errors import InvalidRequest

#: Parts of one body, and bytes of the head of each; real uploads have four parts.
PARTS_MAX: Final = 32
PART_HEAD_BYTES_MAX: Final = 4096
FIELD_BYTES_MAX: Final = 4096
#: RFC 2046 §5.1.1.
BOUNDARY_CHARS_MAX: Final = 70
#: Of a name in the extended form; any other one would choose a codec of Python by its name.
_NAME_CHARSETS: Final = frozenset({"utf-8", "us-ascii"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A form.

    Attributes:
        fields: Texts by name; of a repeated one the last.
        file: Content of the part named ``file``.
        filename: What it is called.
    """

    fields: dict[str, str] = field(default_factory=dict)
    file: bytes
    filename: str


def parse_upload(content_type: str, body: bytes) -> Upload:
    """Read a form with one file in the part named ``file``.

    Args:
        content_type: The header, with the boundary.
        body: As it came.

    Raises:
        InvalidRequest: It is no such form, or something in it is larger than its limit.
    """
    fields: dict[str, str] = {}
    file: bytes | None = None
    filename = ""
    for name, part_name, content in _parts(_boundary(content_type), body):
        if name == "file":
            if file is not None:
                raise InvalidRequest("given more than once", field="file")
            file, filename = content, part_name or "file"
        else:
            fields[name] = _text(name, content)
    if file is None:
        raise InvalidRequest("a part named file with the content is missing", field="file")
    return Upload(fields=fields, file=file, filename=filename)


def _boundary(content_type: str) -> bytes:
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise InvalidRequest("send the file as multipart/form-data with a boundary")
    if not 0 < len(boundary) <= BOUNDARY_CHARS_MAX or not boundary.isascii():
        raise InvalidRequest("the boundary of the form is not valid")
    return boundary.encode()


def _parts(boundary: bytes, body: bytes) -> list[tuple[str, str, bytes]]:
    """Return name, filename and content of each part."""
    # A boundary stands at the beginning of a line; the body begins with one.
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, PARTS_MAX + 2)
    if len(pieces) > PARTS_MAX + 2:
        raise InvalidRequest(f"the form has more than {PARTS_MAX} parts")
    end = next((i for i, piece in enumerate(pieces) if i and piece.startswith(b"--")), None)
    if end is None:
        raise InvalidRequest("the form does not end with its boundary")
    return [_part(piece) for piece in pieces[1:end]]


def _part(piece: bytes) -> tuple[str, str, bytes]:
    padding, found, rest = piece.partition(b"\r\n")
    head, separator, content = rest.partition(b"\r\n\r\n")
    if padding.strip(b" \t") or not found or not separator or len(head) > PART_HEAD_BYTES_MAX:
        raise InvalidRequest("a part of the form has no readable head")
    headers = HeaderParser().parsestr(head.decode("utf-8", "replace"))
    name = headers.get_param("name", header="content-disposition")
    if headers.get_content_disposition() != "form-data" or not isinstance(name, str):
        raise InvalidRequest("a part of the form has no name")
    if headers.get("content-transfer-encoding", "binary").lower() not in {"binary", "8bit", "7bit"}:
        raise InvalidRequest("send the parts of the form as they are", field=name)
    return name, _filename(headers), content


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


def _text(name: str, content: bytes) -> str:
    if len(content) > FIELD_BYTES_MAX:
        raise InvalidRequest(f"is longer than {FIELD_BYTES_MAX} bytes", field=name)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("is not UTF-8", field=name) from error
