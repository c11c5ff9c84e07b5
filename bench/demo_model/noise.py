"""Text unrelated to the question: long prefixes and vocabulary.

The text is the source and the documentation of Python's own standard library, which is present
wherever the training can run. Its exact bytes depend on the Python version.
"""

import json
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from pydoc_data import topics

_MAX_CHARS_PER_TEXT = 40_000
_MIN_CHARS_PER_TEXT = 1_000
_JSON_TYPES = ("string", "string", "number", "boolean", "array", "object")


def standard_library_texts(limit: int, seed: int = 0) -> list[str]:
    """Return about `limit` characters of documentation and source, in a fixed order.

    Args:
        limit: Total number of characters after which no further text is added.
        seed: Seed of the order.
    """
    documentation = [topics.topics[name] for name in sorted(topics.topics)]
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))]
    texts = [
        text[:_MAX_CHARS_PER_TEXT]
        for text in documentation + sources
        if len(text) >= _MIN_CHARS_PER_TEXT
    ]
    random.Random(seed).shuffle(texts)
    chosen: list[str] = []
    total = 0
    for text in texts:
        if total >= limit:
            break
        chosen.append(text)
        total += len(text)
    return chosen


def held_out_texts() -> list[str]:
    """Return sources that `standard_library_texts` never returns, for measurements."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted((folder / "asyncio").glob("*.py")) + sorted((folder / "email").glob("*.py"))
    return [path.read_text(encoding="utf-8") for path in paths]


@cache
def library_words() -> tuple[str, ...]:
    """Return the words of the library's documentation, for texts that are to be copied."""
    pages = " ".join(topics.topics[name] for name in sorted(topics.topics))
    return tuple(sorted(set(re.findall(r"\b[A-Za-z]?[a-z]{1,9}\b", pages))))


def tool_definitions(
    random_: random.Random, texts: Sequence[str], names: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines of a block of tool definitions described at length by random text.

    Args:
        random_: Source of all choices.
        texts: What names and descriptions are cut from.
        names: What the tools are called, if not by words of the texts.
    """

    def excerpt(low: int, high: int) -> str:
        text = random_.choice(texts)
        start = random_.randrange(len(text))
        return text[start : start + random_.randint(low, high)]

    def word() -> str:
        return next(iter(re.findall(r"[A-Za-z_]{3,}", excerpt(80, 80))), "name")

    yield "<|im_start|>system\n# Tools\n<tools>"
    for name in names or [word() for _ in range(random_.randint(4, 12))]:
        properties = {
            word(): {"description": excerpt(10, 200), "type": random_.choice(_JSON_TYPES)}
            for _ in range(random_.randint(1, 6))
        }
        parameters = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": properties,
            "required": list(properties)[:2],
            "additionalProperties": False,
        }
        description = excerpt(50, 1500)
        function = {"name": name, "description": description, "parameters": parameters}
        yield json.dumps({"type": "function", "function": function}, ensure_ascii=False)
    yield "</tools><|im_end|>\n<|im_start|>system\n"
