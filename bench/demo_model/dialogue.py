"""Building blocks of the synthetic conversations, and the tables of ``training.toml``."""

import random
import string
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.demo_model.noise import library_words
from bench.demo_model.render import Message

Random = random.Random
Tool = dict[str, Any]
T = TypeVar("T")
#: The thought before the answer to any result.
RESULT_IS_THERE: Final = "I have the result."


@dataclass(frozen=True)
class Turn:
    """One question and its answer, and the call of a tool if it takes one.

    Attributes:
        user: The user's text.
        answer: The model's expected answer; after a call that to its result.
        thought: The expected text between think marks when thinking is on, without a call.
        tool: The definition of the tool, which must be offered.
        arguments: Those of the call.
        result: The result of the call.
    """

    user: str
    answer: str
    thought: str = ""
    tool: Tool | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    result: str = ""

    @property
    def name(self) -> str:
        """The name of the tool; empty without one."""
        return str(self.tool["function"]["name"]) if self.tool else ""

    def messages(self, *, thinks: bool) -> list[Message]:
        """Return question, call, result and answer, with thoughts before call and answer or not."""
        last: Message = {"role": "assistant", "content": self.answer}
        thought = RESULT_IS_THERE if self.tool else self.thought
        if thinks and thought:
            last["reasoning_content"] = thought
        if self.tool is None:
            return [{"role": "user", "content": self.user}, last]
        function = {"name": self.name, "arguments": dict(self.arguments)}
        call: Message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        }
        if thinks:
            call["reasoning_content"] = f"I call {self.name}."
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


@cache
def known_tools() -> Mapping[str, Tool]:
    """Return the tools whose names the model learns."""
    return {name: tool(name, *described) for name, described in facts("tools").items()}


def tool(name: str, description: str, *parameters: str) -> Tool:
    """Return a function definition whose parameters are required strings."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string"} for parameter in parameters},
                "required": list(parameters),
            },
        },
    }


def _task(random_: Random) -> str:
    text = random_.choice(listed("tasks")).format_map(_Drawn(random_))
    return text.replace("\n", " ")


def _repeated(random_: Random) -> str:
    text = words(random_, 1, 6)
    return sentence_case(text) + random_.choice(".!") if random_.random() < 0.3 else text


def _text(random_: Random) -> str:
    if random_.random() < 0.15:
        return random_.choice(("hello world", "hello", "Hello, world!"))
    return any_words(random_, 1, 5)


#: What a name in the phrases of a turn stands for; other names are lists.
_SLOTS: Final[Mapping[str, Callable[[Random], object]]] = {
    "age": lambda random_: random_.randint(1, 99),
    "anything": lambda random_: any_words(random_, 2, 6),
    "city": lambda random_: random_.choice(cities()),
    "country": lambda random_: random_.choice(list(facts("capitals"))),
    "degrees": lambda random_: random_.randint(-9, 35),
    "few": lambda random_: any_words(random_, 0, 3),
    "found": lambda random_: words(random_, 3, 8),
    "hour": lambda random_: f"{random_.randint(0, 23):02d}",
    "identifier": identifier,
    "limit": lambda random_: random_.randint(3, 20),
    "minute": lambda random_: f"{random_.randint(0, 59):02d}",
    "more": lambda random_: any_words(random_, 3, 20),
    "new": lambda random_: any_words(random_, 1, 2),
    "old": lambda random_: any_words(random_, 1, 2),
    "path": file_path,
    "paths": lambda random_: "\n".join(file_path(random_) for _ in range(random_.randint(1, 3))),
    "phrase": lambda random_: any_words(random_, 1, 3),
    "query": lambda random_: words(random_, 1, 4),
    "remark": lambda random_: words(random_, 3, 12),
    "repeated": _repeated,
    "reply": lambda random_: any_words(random_, 1, 6),
    "task": _task,
    "text": _text,
}


class _Drawn(dict[str, str]):
    """The values of one turn, each drawn where a phrase first names it."""

    def __init__(self, random_: Random) -> None:
        super().__init__()
        self._random = random_

    def __missing__(self, name: str) -> str:
        slot = _SLOTS.get(name)
        value = slot(self._random) if slot else self._random.choice(listed(name))
        self[name] = str(value)
        return self[name]


def drawn_turn(kind: str, random_: Random) -> Turn:
    """Return a turn of a kind that ``training.toml`` describes."""
    weighed = {
        number: variant.get("weight", 1.0) for number, variant in enumerate(tables()["turns"][kind])
    }
    variant = tables()["turns"][kind][pick(random_, weighed)]
    asks, drawn = variant.get("asks", "key"), _Drawn(random_)
    if "table" in variant:
        table = facts(variant["table"])
        key = random_.choice(list(table))
        if asks == "value":
            # Of two countries with one capital the last one is the answer.
            key = {value: name for name, value in table.items()}[table[key]]
        drawn |= {"key": key, "Key": sentence_case(key), "value": str(table[key])}
    wording = random_.choice(variant.get("questions", ["{}"])).replace("{}", f"{{{asks}}}")
    question = wording.format_map(drawn)
    called: dict[str, Any] = {}
    if "tool" in variant:
        called = {
            "tool": known_tools()[variant["tool"]],
            "arguments": {
                name: value.format_map(drawn) for name, value in variant["arguments"].items()
            },
            "result": random_.choice(variant["results"]).format_map(drawn),
        }
    return Turn(
        user=question if variant.get("exact") else vary(random_, question),
        answer=variant["answer"].format_map(drawn),
        thought=variant.get("thought", "").format_map(drawn),
        **called,
    )
