"""The vendor's tools that the client runs: their functions, calls and results in one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from api.dialects.openai_chat.bodies import ContentPart
from api.dialects.openai_chat.parse import text_of
from api.dialects.openai_responses.bodies import InputItem, ResponseTool, ShellEnvironment
from api.dialects.parsing import (
    IMAGE_TYPES,
    PART_BREAK,
    ImageCollector,
    arguments_of,
    function_tool,
)

Schema = Mapping[str, Any]


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": [*required],
        "additionalProperties": False,
    }


def _kind(name: str, *members: Mapping[str, Schema]) -> Schema:
    """Return the schema of a member of a choice by ``type``; behind it required and optional."""
    first, *rest = members or ({},)
    return _object({"type": {"type": "string", "const": name}, **first}, *rest)


_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_DIFF: Final[Schema] = {
    "type": "string",
    "description": "Of a new file its lines, each behind a +. Otherwise hunks behind @@ lines: "
    "unchanged lines behind a space, removed ones behind a -, added ones behind a +.",
}
_PATH: Final[Schema] = {"type": "string", "description": "Path inside the workspace."}
_POINT: Final[Mapping[str, Schema]] = {"x": _WHOLE, "y": _WHOLE}
_KEYS: Final[Mapping[str, Schema]] = {"keys": _TEXTS}
_BUTTON: Final[Schema] = {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]}
_ACTION: Final[Schema] = {
    "anyOf": [
        _kind("click", {"button": _BUTTON, **_POINT}, _KEYS),
        _kind("double_click", _POINT, _KEYS),
        _kind("drag", {"path": {"type": "array", "items": _object(_POINT)}}, _KEYS),
        _kind("keypress", _KEYS),
        _kind("move", _POINT, _KEYS),
        _kind("screenshot"),
        _kind("scroll", {**_POINT, "scroll_x": _WHOLE, "scroll_y": _WHOLE}, _KEYS),
        _kind("type", {"text": _TEXT}),
        _kind("wait"),
    ]
}
_OPERATION: Final[Schema] = {
    "anyOf": [
        _kind("create_file", {"path": _PATH, "diff": _DIFF}),
        _kind("update_file", {"path": _PATH, "diff": _DIFF}),
        _kind("delete_file", {"path": _PATH}),
    ]
}
_TIMEOUT: Final[Schema] = {"type": "integer", "description": "Milliseconds to wait at most."}
_SCREEN: Final = "Control the mouse and the keyboard of a computer, and see its screen."


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTool:
    """A tool of the vendor, by its type, which is also the name of its function.

    Attributes:
        call: Type of the item of a call; that of its result has ``_output`` behind it.
        prefix: Prefix of the ids of calls.
        text: Description for the model.
        schema: Schema of the arguments.
        member: The member of the item that has the arguments as a whole, "" where the arguments
            are members of the item.
        added: What that member has besides the arguments.
    """

    call: str
    prefix: str
    text: str
    schema: Schema
    member: str = ""
    added: Mapping[str, Any]


CLIENT_TOOLS: Final[Mapping[str, ItemTool]] = {
    "shell": ItemTool(
        call="shell_call",
        prefix="sh",
        text="Run shell commands, in order, and return what they print.",
        schema=_object(
            {"commands": _TEXTS},
            {
                "timeout_ms": _TIMEOUT,
                "max_output_length": {"type": "integer", "description": "Characters at most."},
            },
        ),
        member="action",
        added={},
    ),
    "local_shell": ItemTool(
        call="local_shell_call",
        prefix="lsh",
        text="Run a command, and return what it prints.",
        schema=_object(
            {"command": {**_TEXTS, "description": "The program and its arguments."}},
            {
                "working_directory": _TEXT,
                "timeout_ms": _TIMEOUT,
                "env": {"type": "object", "additionalProperties": _TEXT},
                "user": _TEXT,
            },
        ),
        member="action",
        added={"type": "exec", "env": {}},
    ),
    "apply_patch": ItemTool(
        call="apply_patch_call",
        prefix="apc",
        text="Create, update or delete a file by a diff.",
        schema=_object({"operation": _OPERATION}),
        added={},
    ),
    "computer": ItemTool(
        call="computer_call",
        prefix="cu",
        text=_SCREEN,
        schema=_object({"actions": {"type": "array", "items": _ACTION, "minItems": 1}}),
        added={"pending_safety_checks": []},
    ),
    "computer_use_preview": ItemTool(
        call="computer_call",
        prefix="cu",
        text=_SCREEN,
        schema=_object({"action": _ACTION}),
        added={"pending_safety_checks": []},
    ),
}
#: Types of the items of calls and of results, with the prefixes of their ids.
CLIENT_CALLS: Final = {one.call: one.prefix for one in CLIENT_TOOLS.values()}
CLIENT_RESULTS: Final = {f"{call}_output": f"{prefix}o" for call, prefix in CLIENT_CALLS.items()}


def client_function(tool: ResponseTool) -> Mapping[str, Any]:
    """Return a tool in function format, with the client's settings in its description."""
    known = CLIENT_TOOLS[tool.type]
    return function_tool(tool.type, PART_BREAK.join([known.text, *_settings(tool)]), known.schema)


def call_members(kind: str, arguments: str) -> dict[str, Any] | None:
    """Return what the item of a call has of its arguments.

    ``None`` for those that a model without constraints wrote in another form.
    """
    known, values = CLIENT_TOOLS[kind], arguments_of(arguments)
    if not _fits(known.schema, values):
        return None
    whole = {**known.added, **values}
    return {known.member: whole} if known.member else whole


def stored_call(item: InputItem, kind: str) -> dict[str, Any] | None:
    """Return the members of a call that the client sends back, ``None`` if it lacks one."""
    given = {"action": item.action, "actions": item.actions, "operation": item.operation}
    names = {"apply_patch_call": ("operation",), "computer_call": ("actions", "action")}
    found = next((one for one in names.get(kind, ("action",)) if given[one] is not None), None)
    if found is None:
        return None
    return {found: _given(given[found])} | (
        {"pending_safety_checks": []} if kind == "computer_call" else {}
    )


def _given(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a value without the members that an SDK fills with ``null``."""
    if isinstance(value, list):
        return [_given(one) for one in value]
    if isinstance(value, dict):
        return {key: _given(one) for key, one in value.items() if one is not None}
    return value


def called(item: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the arguments of the model's call that a stored item reports."""
    name = next(
        name
        for name, known in CLIENT_TOOLS.items()
        if known.call == item["type"]
        and (known.member or next(iter(known.schema["properties"]))) in item
    )
    known = CLIENT_TOOLS[name]
    if not known.member:
        (key,) = known.schema["properties"]
        return name, {key: item[key]}
    values = item[known.member].items()
    return name, {key: value for key, value in values if known.added.get(key) != value}


def stored_parts(content: str | Sequence[ContentPart] | None) -> list[dict[str, Any]]:
    """Return a content as stored parts: its images, and the texts between them."""
    parts: list[dict[str, Any]] = []
    texts: list[ContentPart] = []
    for part in () if content is None or isinstance(content, str) else content:
        if part.type not in IMAGE_TYPES or part.url is None:
            texts.append(part)
            continue
        if texts:
            parts.append({"type": "input_text", "text": text_of(texts)})
            texts = []
        parts.append({"type": "input_image", "image_url": part.url, "detail": "auto"})
    if texts or not parts:
        rest = texts if parts or not isinstance(content, str) else content
        parts.append({"type": "input_text", "text": text_of(rest)})
    return parts


def stored_output(item: InputItem) -> Any:  # noqa: ANN401 - any JSON
    """Return the output of a result as it is stored."""
    if isinstance(item.output, dict):
        url = item.output.get("image_url")
        image = {"image_url": url} if isinstance(url, str) else {}
        return {"type": item.output.get("type"), **image}
    if isinstance(item.output, list):
        return [one.model_dump(exclude_none=True) for one in item.output]
    return item.output or ""


def output_text(item: Mapping[str, Any], collector: ImageCollector) -> str:
    """Return the text of a stored result for the model; the collector takes a screenshot."""
    output = item["output"]
    if isinstance(output, dict):
        return collector.of_url(output.get("image_url"))
    if isinstance(output, str):
        failed = item["status"] == "failed" and not output.lower().startswith("error")
        return f"Error: {output}" if failed else output
    return PART_BREAK.join(line for one in output for line in _printed(one))


def _printed(output: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a command printed and how it ended."""
    for name in ("stdout", "stderr"):
        if text := output.get(name):
            yield text
    outcome = output.get("outcome") or {}
    if outcome.get("type") == "timeout":
        yield "[timed out]"
    else:
        yield f"[exit code {outcome.get('exit_code')}]"


def _settings(tool: ResponseTool) -> Iterator[str]:
    if isinstance(tool.environment, ShellEnvironment):
        for skill in tool.environment.skills or ():
            yield f"Skill {skill.name} in {skill.path}: {skill.description}"
    elif tool.environment:
        yield f"The system is {tool.environment}."
    if tool.display_width is not None and tool.display_height is not None:
        yield f"The screen has {tool.display_width} x {tool.display_height} pixels."


def _fits(schema: Schema | Literal[False], value: Any) -> bool:  # noqa: ANN401 - any JSON
    """Whether a value is one that a schema of the table allows."""
    if schema is False:
        return False
    if "anyOf" in schema:
        return any(_fits(one, value) for one in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if schema["type"] == "object":
        properties: Mapping[str, Schema] = schema.get("properties", {})
        others = schema["additionalProperties"]
        return (
            isinstance(value, Mapping)
            and value.keys() >= {*schema.get("required", ())}
            and all(_fits(properties.get(key, others), one) for key, one in value.items())
        )
    if schema["type"] == "array":
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(_fits(schema["items"], one) for one in value)
        )
    wanted = str if schema["type"] == "string" else int
    return isinstance(value, wanted) and not isinstance(value, bool)
