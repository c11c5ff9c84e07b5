"""Text from elsewhere on a terminal: what would control it is shown instead.

Model output, names and headers may have escape sequences, which move the cursor, set the title,
write the clipboard or answer for the user, and marks that reorder a line. They are replaced by
their code points in the notation of JSON, so that a JSON text keeps its meaning.
"""

from __future__ import annotations

import re
from typing import Final

#: C0 without tab and line feed, DEL and C1, marks of direction, invisible separators and tags, and
#: surrogates, which have no encoding. Joiners stay: scripts and emoji need them.
_CONTROLS: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
_IN_TEXT: Final = re.compile(f"[{_CONTROLS}]")
_IN_LINE: Final = re.compile(f"[{_CONTROLS}\t\n]")
_BMP_MAX: Final = 0xFFFF


def visible(text: str) -> str:
    """Return a text of any number of lines that cannot control a terminal."""
    return _IN_TEXT.sub(_escaped, text)


def visible_line(text: str) -> str:
    """Return a text that cannot control a terminal and stays on its line."""
    return _IN_LINE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= _BMP_MAX:
        return f"\\u{code:04x}"
    above = code - 0x10000
    return f"\\u{0xD800 + (above >> 10):04x}\\u{0xDC00 + (above & 0x3FF):04x}"
