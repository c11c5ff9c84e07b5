"""Images of a conversation: where they stand in its text, and their tokens in a prompt.

A prompt has tokens of its own for each image: ids above every vocabulary, made of the digest of
the image's bytes. So names of blocks, checkpoints and prompts differ between images, in memory, on
the disk and in the log, although the model's own placeholder is the same for all of them.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from domain.errors import InvalidRequest
from domain.kv.hashing import ID_BITS

#: Stands for one image in the text of a message; Unicode's own character for such objects.
IMAGE_MARK: Final = "\ufffc"
#: Replaces such a character that stands for no image.
_UNKNOWN: Final = "\ufffd"
#: Takes the place of an image that the model cannot read.
IMAGE_NOTE: Final = "[image left out: this model reads text only]"

#: Least token id of an image; vocabularies end below it.
IMAGE_ID_MIN: Final = 1 << (ID_BITS - 1)

#: The formats that are read by their first bytes; the third is WebP in its container.
_FORMATS: Final[Mapping[str, re.Pattern[bytes]]] = {
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "webp": re.compile(rb"RIFF.{4}WEBP", re.DOTALL),
    "gif": re.compile(rb"GIF8[79]a"),
}
#: Characters of base64 that hold the first bytes.
_HEAD_CHARACTERS: Final = 16
_URL_START: Final = "data:"


@dataclass(frozen=True, slots=True)
class ChatImage:
    """An image as a client sent it; ``data`` is the base64 of its file."""

    data: str

    @property
    def content(self) -> bytes:
        """Return the bytes of the file."""
        return binascii.a2b_base64(self.data)

    @property
    def url(self) -> str:
        """Return the image as a data URL."""
        return f"data:image/{_format_of(self.data[:_HEAD_CHARACTERS])};base64,{self.data}"


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image of a prompt.

    Attributes:
        at: Positions of its tokens among those of the prompt, ascending.
        grid: Rows and columns of its tokens, where positions depend on them.
    """

    image: ChatImage
    at: tuple[int, ...]
    grid: tuple[int, int] | None = None


def image_of_base64(data: str | None, field: str) -> ChatImage:
    """Return an image.

    Raises:
        InvalidRequest: It is no base64 of a PNG, JPEG, GIF or WebP file.
    """
    try:
        is_known = _format_of(data or "") is not None
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest("the data of an image is no valid base64", field=field) from error
    if not is_known:
        msg = "an image is a PNG, JPEG, GIF or WebP file; the data begins as none of them"
        raise InvalidRequest(msg, field=field)
    return ChatImage(data or "")


def _format_of(data: str) -> str | None:
    """Return the name of the format of a file in base64, ``None`` for an unknown one."""
    content = binascii.a2b_base64(data, strict_mode=True)
    return next((name for name, start in _FORMATS.items() if start.match(content)), None)


def image_of_url(url: str | None, field: str) -> ChatImage:
    """Return the image of a data URL.

    Raises:
        InvalidRequest: It is another URL, or no image.
    """
    head, comma, data = (url or "").partition(",")
    if not head.lower().startswith(_URL_START) or not comma or not head.endswith(";base64"):
        msg = "this service fetches no images: send a data URL, data:image/png;base64,…"
        raise InvalidRequest(msg, field=field)
    return image_of_base64(data, field)


def unmarked(text: str) -> str:
    """Return a text in which no character stands for an image."""
    return text.replace(IMAGE_MARK, _UNKNOWN)


def image_ids(digest: bytes, count: int) -> tuple[int, ...]:
    """Return the token ids of an image: a function of its digest.

    Two images differ in each of their tokens but for one in 2 ** 19.
    """
    drawn = hashlib.shake_256(b"semantic image\0" + digest).digest(4 * count)
    return tuple(IMAGE_ID_MIN | word % IMAGE_ID_MIN for word in struct.unpack(f"<{count}I", drawn))


def image_positions(tokens: Iterable[int]) -> list[int]:
    """Return where tokens of images stand in a prompt."""
    return [at for at, token in enumerate(tokens) if token >= IMAGE_ID_MIN]
