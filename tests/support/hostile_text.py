"""Text that would control a terminal, and what of it is left in an output."""

from __future__ import annotations

import re
from typing import Final

#: Clears the screen, sets the title, writes the clipboard, asks for a report, overprints, and
#: reorders the line; with the 8-bit form of the introducer, a delete and an invisible tag.
HOSTILE: Final = (
    "\x1b[2J\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x1b\\\x1b[6n\rroot\b\x9b31m\x7f\u202egpj.exe\u2066"
    "\U000e0041"
)
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)


def controls(text: str) -> list[str]:
    """Return the characters of a text that control a terminal."""
    return _CONTROL.findall(text)
