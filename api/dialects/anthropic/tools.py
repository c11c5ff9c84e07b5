"""Tools of Messages: the caller's, the vendor's that the client runs, and the search for tools."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from api.dialects.anthropic.bodies import AnthropicTool, AnthropicToolChoice
from api.dialects.anthropic.client_tools import CLIENT_TOOLS, ClientTool
from api.dialects.parsing import (
    PART_BREAK,
    Mode,
    choice_of,
    function_text,
    function_tool,
    model_tool_name,
)
from domain.chat.request import ToolChoice, canonical_json

_MODES: Final[Mapping[str, Mode]] = {"none": "none", "any": "any", "tool": "tool"}
#: The searches that run here, by the fixed name of the tool: their argument and its text.
_SEARCHES: Final[Mapping[str, tuple[str, str]]] = {
    "tool_search_tool_bm25": ("query", "Words that describe the wanted tools."),
    "tool_search_tool_regex": (
        "pattern",
        "Regular expression for names, descriptions or arguments; (?i) ignores case.",
    ),
}
#: Most tools that a search finds, and most characters of what it looks for, as at the vendor.
FOUND_MAX: Final = 5
PATTERN_CHARS_MAX: Final = 200

#: Weight of repeated words, and share of the correction for long texts.
_K1: Final = 1.2
_B: Final = 0.75
#: Words, also those inside of names such as ``get_weather`` and ``getWeather``.
_WORDS: Final = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])|\d+")


class AnthropicTools:
    """The tools of a request in function format.

    Attributes:
        loaded: Tools that the template describes at the beginning of the prompt.
        narrowed: Schemas that arguments are held to, where these are narrower than the shown ones.
        strict: Names of the tools whose schema the service must enforce.
    """

    def __init__(self, tools: Sequence[AnthropicTool] | None = None) -> None:
        self.narrowed: dict[str, Mapping[str, Any]] = {}
        self._toolsets: dict[str, tuple[str, str]] = {}
        self._searches: set[str] = set()
        self._deferred: dict[str, Mapping[str, Any]] = {}
        self._referred: dict[str, Mapping[str, Any]] = {}
        loaded, strict = [], []
        for tool in tools or ():
            for function, is_deferred in self._functions(tool):
                if is_deferred:
                    self._deferred[function["function"]["name"]] = function
                else:
                    loaded.append(function)
                if tool.strict:
                    strict.append(function["function"]["name"])
        self.loaded, self.strict = tuple(loaded), tuple(strict)

    @property
    def referred(self) -> tuple[Mapping[str, Any], ...]:
        """Deferred tools that a message refers to, in order of their first mention."""
        return tuple(self._referred.values())

    def description(self, name: object) -> str:
        """Return the text that replaces a reference to a deferred tool; see ``function_text``."""
        tool = self._deferred.get(name) if isinstance(name, str) else None
        if tool is None:
            return f"[tool {name}]"
        assert isinstance(name, str), "only names have tools"  # noqa: S101 - for the type checker
        self._referred[name] = tool
        return function_text(tool)

    def shown_name(self, name: str) -> Mapping[str, str]:
        """Return ``name`` of a block for a call by the model's name, and its toolset if any."""
        if name not in self._toolsets:
            return {"name": name}
        toolset, member = self._toolsets[name]
        return {"name": member, "toolset_name": toolset}

    def is_search(self, name: str) -> bool:
        """Whether this service runs the calls of a tool."""
        return name in self._searches

    def search(self, name: str, arguments: str) -> Mapping[str, Any]:
        """Return the content of the result of a search."""
        key, _ = _SEARCHES[name]
        try:
            wanted = json.loads(arguments)[key]
        except (ValueError, KeyError, TypeError, RecursionError):
            wanted = None
        if not isinstance(wanted, str) or len(wanted) > PATTERN_CHARS_MAX:
            return _search_error()
        names = list(self._deferred)
        texts = [_searched_text(tool["function"]) for tool in self._deferred.values()]
        if key == "query":
            found = ranked(wanted, texts, limit=FOUND_MAX)
        else:
            try:
                found = _matching(wanted, texts)
            except SchemaError:
                return _search_error()
        references = [{"type": "tool_reference", "tool_name": names[place]} for place in found]
        return {"type": "tool_search_tool_search_result", "tool_references": references}

    def _functions(self, tool: AnthropicTool) -> Iterator[tuple[Mapping[str, Any], bool]]:
        """Yield a tool as the model is offered it, and whether only a search offers it.

        A toolset has a function for each member.
        """
        known = CLIENT_TOOLS.get(tool.type or "")
        if known is None or not known.is_toolset:
            yield self._function(tool, known), bool(tool.defer_loading)
            return
        for member in known.members:
            settings = tool.member(member)
            if settings.enabled is not False:
                name = model_tool_name(known.name, member)
                self._toolsets[name] = (known.name, member)
                function = function_tool(name, known.text(member), known.schema([member]))
                yield function, bool(settings.defer_loading)

    def _function(self, tool: AnthropicTool, known: ClientTool | None) -> Mapping[str, Any]:
        if tool.search:
            self._searches.add(tool.search)
            return _search_function(tool.search)
        if known is None:
            shown = _with_examples(tool.description, tool)
            return function_tool(tool.name, shown, tool.input_schema)
        members = [name for name in known.members if name != "zoom" or tool.enable_zoom]
        if (narrowed := known.narrowed(members)) is not None:
            self.narrowed[known.name] = narrowed
        text = PART_BREAK.join([known.description, *_settings(tool)])
        return function_tool(known.name, _with_examples(text, tool), known.schema(members))


def tool_choice_of(spec: AnthropicToolChoice | None, toolbox: AnthropicTools) -> ToolChoice:
    """Return the tool choice of a request.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
    """
    if spec is None:
        return ToolChoice()
    return choice_of(
        _MODES.get(spec.type, "auto"),
        spec.name,
        parallel=not spec.disable_parallel_tool_use,
        tools=(*toolbox.loaded, *toolbox.referred),
        field="tool_choice.name" if spec.type == "tool" else "tool_choice",
    )


def _settings(tool: AnthropicTool) -> Iterator[str]:
    """Yield what the model must know of the client's settings of a tool."""
    if tool.display_width_px is not None and tool.display_height_px is not None:
        yield f"The screen has {tool.display_width_px} x {tool.display_height_px} pixels."
    if tool.display_number is not None:
        yield f"Its X11 display is {tool.display_number}."
    if tool.max_characters is not None:
        yield f"A view shows at most {tool.max_characters} characters of a file."


def _with_examples(text: str | None, tool: AnthropicTool) -> str | None:
    examples = [canonical_json(one).decode(errors="replace") for one in tool.input_examples or ()]
    if not examples:
        return text
    return PART_BREAK.join([*filter(None, [text]), "Examples of its input:", *examples])


def _search_function(name: str) -> Mapping[str, Any]:
    key, text = _SEARCHES[name]
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text}},
        "required": [key],
        "additionalProperties": False,
    }
    return function_tool(name, "Find further tools, which can be called from then on.", schema)


def _searched_text(function: Mapping[str, Any]) -> str:
    """Return the name, the description and the arguments of a tool."""
    properties = function["parameters"].get("properties")
    texts = [function["name"], function["description"]]
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        text = schema.get("description") if isinstance(schema, dict) else None
        texts += [name, text if isinstance(text, str) else ""]
    return "\n".join(texts)


def _matching(pattern: str, texts: Sequence[str]) -> list[int]:
    """Return the positions of the texts that match a pattern.

    The pattern is the model's. Pydantic's engine takes linear time for any, ``re`` does not.

    Raises:
        SchemaError: The pattern is invalid.
    """
    search = SchemaValidator(core_schema.str_schema(pattern=pattern))
    found = []
    for place, text in enumerate(texts):
        try:
            search.validate_python(text)
        except ValidationError:
            continue
        found.append(place)
    return found[:FOUND_MAX]


def _search_error() -> Mapping[str, Any]:
    return {"type": "tool_search_tool_result_error", "error_code": "invalid_tool_input"}


def ranked(query: str, texts: Sequence[str], *, limit: int) -> list[int]:
    """Return the positions of the texts that have a word of the query, best first.

    Okapi BM25 (Robertson and Zaragoza 2009).

    Args:
        texts: The texts; of equally good ones the earlier comes first.
    """
    counts = [Counter(_words(text)) for text in texts]
    mean = sum(map(Counter.total, counts)) / max(1, len(counts))
    scores = [0.0] * len(counts)
    for word in dict.fromkeys(_words(query)):
        having = sum(word in found for found in counts)
        rarity = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
        for place, found in enumerate(counts):
            if times := found[word]:
                room = _K1 * (1 - _B + _B * found.total() / mean)
                scores[place] += rarity * times * (_K1 + 1) / (times + room)
    best = sorted(range(len(scores)), key=lambda place: -scores[place])
    return [place for place in best if scores[place] > 0][:limit]


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(text)]
