"""Images in conversations: refused in the question, replaced by a note before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from domain.errors import InvalidRequest

IMAGE_NOTE: Final = "[image left out: this model reads text only]"
IMAGE_REFUSED: Final = "this model reads text only: an image cannot be part of the question"
#: Types of parts that are images, in any dialect.
IMAGE_TYPES: Final = frozenset({"image", "image_url", "input_image"})


class TypedPart(Protocol):
    """A part of a content."""

    @property
    def type(self) -> str:
        """Its type in its dialect."""
        ...


def newest_of_user(roles: Iterable[str | None]) -> int:
    """Return the index of the last turn of the user, -1 if there is none."""
    return max((index for index, role in enumerate(roles) if role == "user"), default=-1)


def refuse_images(content: str | Sequence[TypedPart] | None, where: str) -> None:
    """Refuse a question with an image.

    Args:
        content: The newest message of the user.
        where: Its place in the body.

    Raises:
        InvalidRequest: The error names the part.
    """
    if content is None or isinstance(content, str):
        return
    for place, part in enumerate(content):
        if part.type in IMAGE_TYPES:
            raise InvalidRequest(IMAGE_REFUSED, field=f"{where}.content.{place}")
