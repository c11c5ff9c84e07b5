"""Building blocks of the synthetic conversations, and the tables of ``training.toml``."""

import random
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bench.demo_model.noise import library_words

Random = random.Random
T = TypeVar("T")


@dataclass(frozen=True)
class Turn:
    """One question and its answer.

    Attributes:
        user: The user's text.
        answer: The model's expected answer.
        thought: The expected text between think marks when thinking is on.
    """

    user: str
    answer: str
    thought: str


@dataclass(frozen=True)
class ToolTurn:
    """One question that takes a tool call.

    Attributes:
        user: The user's text.
        tool: The definition of the tool, which must be offered.
        arguments: Those of the call.
        result: The result of the call.
        answer: The model's answer after the result.
    """

    user: str
    tool: dict[str, Any]
    arguments: Mapping[str, str]
    result: str
    answer: str

    @property
    def name(self) -> str:
        """The name of the tool."""
        return str(self.tool["function"]["name"])

    def messages(self, *, thinks: bool) -> list[dict[str, Any]]:
        """Return question, call, result and answer, with thoughts before call and answer or not."""
        function = {"name": self.name, "arguments": dict(self.arguments)}
        call = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
        last = {"role": "assistant", "content": self.answer}
        if thinks:
            call["reasoning_content"] = f"I call {self.name}."
            last["reasoning_content"] = "I have the result."
        result = {"role": "tool", "content": self.result}
        return [{"role": "user", "content": self.user}, call, result, last]


@cache
def tables() -> Mapping[str, Any]:
    """Return what ``training.toml`` holds."""
    file = Path(__file__).with_name("training.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def facts(name: str) -> dict[str, Any]:
    """Return a table of facts."""
    found: dict[str, Any] = tables()["facts"][name]
    return found


def listed(name: str) -> list[str]:
    """Return a list of words or phrases."""
    found: list[str] = tables()["lists"][name]
    return found


def phrases(name: str) -> list[str]:
    """Return the wordings of one kind of question."""
    found: list[str] = tables()["phrases"][name]
    return found


@cache
def cities() -> Sequence[str]:
    """Return the capitals, some of them twice, and other cities."""
    return [*facts("capitals").values(), *listed("more_cities")]


def ask(random_: Random, *templates: str, value: str = "") -> str:
    """Choose a wording of a question and disturb its spelling a little."""
    text = random_.choice(templates).replace("{}", value)
    return vary(random_, text)


def vary(random_: Random, text: str) -> str:
    """Return `text` as differently careful users would type it."""
    roll = random_.random()
    if roll < 0.15:
        return text[0].lower() + text[1:]
    if roll < 0.25:
        return text.rstrip("?.")
    if roll < 0.35:
        return text.lower().rstrip("?.")
    if roll < 0.40:
        return "Please answer: " + text
    if roll < 0.43:
        return text + " Answer briefly."
    return text


def sentence_case(text: str) -> str:
    """Return `text` with a capital first letter."""
    return text[:1].upper() + text[1:]


def words(random_: Random, low: int, high: int) -> str:
    """Return between `low` and `high` random words."""
    return " ".join(random_.choices(listed("words"), k=random_.randint(low, high)))


def any_words(random_: Random, low: int, high: int) -> str:
    """Return between `low` and `high` words of any kind, to be copied."""
    if random_.random() < 0.85:
        return words(random_, low, high)
    text = " ".join(random_.choices(library_words(), k=random_.randint(low, high)))
    if random_.random() < 0.2:
        text = sentence_case(text) + random_.choice((".", "!", "?", ""))
    if random_.random() < 0.1:
        text = text.replace(" ", random_.choice((", ", " - ", " + ", " = ", "\n")))
    return text


def identifier(random_: Random) -> str:
    """Return a plausible name: a word, two words, or letters that form no word."""
    roll = random_.random()
    if roll < 0.6:
        return random_.choice(listed("words"))
    if roll < 0.7:
        return random_.choice(library_words())
    if roll < 0.85:
        return random_.choice(listed("words")) + "_" + random_.choice(listed("words"))
    return "".join(random_.choices(string.ascii_lowercase, k=random_.randint(3, 8)))


def file_path(random_: Random) -> str:
    """Return a plausible path of a file."""
    name = identifier(random_) + "." + random_.choice(listed("extensions"))
    roll = random_.random()
    if roll < 0.35:
        return name
    if roll < 0.5:
        return random_.choice(listed("folders")) + "/" + name
    if roll < 0.65:
        return f"/{random_.choice(['home', 'tmp', 'work', 'repo'])}/{identifier(random_)}/{name}"
    return random_.choice(listed("known_files"))


def pick(random_: Random, weighted: Mapping[T, float]) -> T:
    """Return one key of `weighted`, chosen with its weight."""
    return random_.choices(list(weighted), weights=list(weighted.values()))[0]
