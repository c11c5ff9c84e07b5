"""The vendor's tools that the client runs: one table of their names, members and inputs.

A spec lists the properties of an input by name: ``?`` marks those that may be absent, and ``=``
stands before the name of the schema where that is another one. A text and ``|`` may stand before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = Mapping[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_POINT: Final[Schema] = {
    "type": "array",
    "items": _WHOLE,
    "minItems": 2,
    "maxItems": 2,
    "description": "x and y in pixels from the upper left corner.",
}
_REGION: Final[Schema] = {
    "type": "array",
    "items": _WHOLE,
    "minItems": 4,
    "maxItems": 4,
    "description": "Left, upper, right and lower edge in pixels.",
}
_DIRECTION: Final[Schema] = {"type": "string", "enum": ["up", "down", "left", "right"]}
#: Properties of files; see ``text_editor_*`` and ``memory_*``.
_FILE: Final[Mapping[str, Schema]] = {
    "path": {"type": "string", "description": "Absolute path of the file or directory."},
    "view_range": {
        "type": "array",
        "items": _WHOLE,
        "minItems": 2,
        "maxItems": 2,
        "description": "First and last line, from 1; -1 is the last line of the file.",
    },
    "file_text": {"type": "string", "description": "The whole content of the new file."},
    "insert_line": {"type": "integer", "description": "Line to insert behind; 0 for the top."},
    "old_str": {"type": "string", "description": "Text to replace; it must occur exactly once."},
    "new_str": {"type": "string", "description": "Text that replaces old_str, or is inserted."},
    "insert_text": {"type": "string", "description": "Text to insert."},
    "old_path": {"type": "string", "description": "Present path."},
    "new_path": {"type": "string", "description": "Wanted path."},
}
_SCREEN: Final[Mapping[str, Schema]] = {
    "start_coordinate": _POINT,
    "coordinate": _POINT,
    "region": _REGION,
    "scroll_direction": _DIRECTION,
    "scroll_amount": {"type": "integer", "description": "Clicks of the wheel."},
    "text": {"type": "string", "description": "Text to type, or keys such as ctrl+s."},
    "duration": {"type": "integer", "description": "Seconds."},
    "repeat": {"type": "integer", "description": "Number of presses."},
}


def _target(kind: str, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"type": {"type": "string", "const": kind}, **properties},
        "required": ["type", *properties],
        "additionalProperties": False,
    }


_SPOT: Final = _target("coordinate", x=_WHOLE, y=_WHOLE)
_ELEMENT: Final = _target("ref", ref={**_TEXT, "description": "Reference of read_page or find."})
_PAGE: Final[Mapping[str, Schema]] = {
    "url": {"type": "string", "description": "URL, or back, forward or reload."},
    "tab_id": {"type": "string", "description": "Tab; by default the active one."},
    "query": {"type": "string", "description": "Description of the elements."},
    "target": {"anyOf": [_SPOT, _ELEMENT], "description": "A point or an element."},
    "spot": _SPOT,
    "element": _ELEMENT,
    "from": _SPOT,
    "value": {"type": ["string", "number", "boolean"]},
    "paths": {"type": "array", "items": _TEXT},
    "document_ids": {"type": "array", "items": _TEXT},
    "modifiers": {"type": "string", "description": "Keys to hold, such as ctrl+shift."},
    "text": _TEXT,
    "repeat": _WHOLE,
    "duration": {"type": "number", "description": "Seconds, at most 30."},
    "scroll_direction": _DIRECTION,
    "scroll_amount": {"type": "integer", "description": "Notches of the wheel, 1 to 10."},
    "region": _REGION,
    "depth": {"type": "integer", "description": "Most levels of the tree, 15 by default."},
    "filter": {"type": "string", "enum": ["interactive", "all"]},
    "ref": {"type": "string", "description": "Root of the tree to read."},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A tool of the vendor, by its type with its version.

    Attributes:
        name: The fixed name of the tool; of a toolset, the name of the family.
        description: Text for the model.
        selector: The property that chooses the member; "" where the members are tools.
        members: Specs by member; a tool without members has one, named "".
        properties: Schemas of the properties of the specs.
        is_toolset: Whether each member is a tool of its own.
    """

    name: str
    description: str
    members: Mapping[str, str]
    properties: Mapping[str, Schema]
    selector: str = ""
    is_toolset: bool = False

    def text(self, member: str) -> str:
        """Return the text of a member of a toolset for the model."""
        text, stroke, _ = self.members[member].partition(" | ")
        words = text if stroke else member.replace("_", " ").capitalize()
        return f"{words} {self.description}."

    def schema(self, members: Collection[str]) -> Schema:
        """Return the schema of the input, with the properties of all members."""
        specs = [self._spec(member) for member in members]
        names = dict.fromkeys(name for spec in specs for name in spec)
        required = [name for name in names if all(name in spec for spec in specs)]
        shown = {} if not self.selector else {self.selector: {"type": "string", "enum": [*members]}}
        return {
            "type": "object",
            "properties": shown | self._properties(names),
            "required": [*shown, *_required(required)],
            "additionalProperties": False,
        }

    def narrowed(self, members: Collection[str]) -> Schema | None:
        """Return the schema that has just what each member takes, if there are members."""
        if not self.selector:
            return None
        whole = self.schema(members)
        choices = []
        for member in members:
            spec = self._spec(member)
            own = {self.selector: {"const": member}, **self._properties(spec)}
            names = [self.selector, *_required(spec)]
            choices.append({"properties": own, "required": names, "additionalProperties": False})
        return {**whole, "anyOf": choices}

    def _spec(self, member: str) -> list[str]:
        return self.members[member].rpartition(" | ")[2].split()

    def _properties(self, names: Iterable[str]) -> dict[str, Schema]:
        pairs = (name.rstrip("?").partition("=") for name in names)
        return {name: self.properties[of or name] for name, _, of in pairs}


def _required(spec: Iterable[str]) -> list[str]:
    return [name.partition("=")[0] for name in spec if not name.endswith("?")]


_BASH: Final = ClientTool(
    name="bash",
    description="Run a command in a bash session that keeps its state between calls.",
    members={"": "command? restart?"},
    properties={
        "command": {"type": "string", "description": "The command; required unless restarting."},
        "restart": {"type": "boolean", "description": "Whether to restart the session."},
    },
)
_EDITS: Final = {
    "view": "path view_range?",
    "create": "path file_text",
    "str_replace": "path old_str new_str?",
    "insert": "path insert_line new_str",
}
_EDITOR: Final = "View, create and edit text files."
_OLD_EDITOR: Final = ClientTool(
    name="str_replace_editor",
    description=_EDITOR,
    selector="command",
    members={**_EDITS, "undo_edit": "path"},
    properties=_FILE,
)
_NEW_EDITOR: Final = ClientTool(
    name="str_replace_based_edit_tool",
    description=_EDITOR,
    selector="command",
    members=_EDITS,
    properties=_FILE,
)
_MEMORY: Final = ClientTool(
    name="memory",
    description=(
        "Read and keep notes in the directory /memories, which lasts between conversations. "
        "View it before you begin a task, and keep in it what later tasks need."
    ),
    selector="command",
    members={
        "view": "path view_range?",
        "create": "path file_text",
        "str_replace": "path old_str new_str",
        "insert": "path insert_line insert_text",
        "delete": "path",
        "rename": "old_path new_path",
    },
    properties=_FILE,
)
_CLICK: Final = "coordinate? text?"
_FIRST_ACTIONS: Final = {
    "key": "text",
    "type": "text",
    "mouse_move": "coordinate",
    "left_click": _CLICK,
    "left_click_drag": "coordinate",
    "right_click": _CLICK,
    "middle_click": _CLICK,
    "double_click": _CLICK,
    "screenshot": "",
    "cursor_position": "",
}
_ACTIONS: Final = {
    **_FIRST_ACTIONS,
    "left_click_drag": "start_coordinate coordinate text?",
    "left_mouse_down": "",
    "left_mouse_up": "",
    "scroll": "coordinate? scroll_direction scroll_amount text?",
    "hold_key": "text duration",
    "wait": "duration",
    "triple_click": _CLICK,
}
_ZOOM: Final = {"zoom": "region"}


def _computer(members: Mapping[str, str]) -> ClientTool:
    return ClientTool(
        name="computer",
        description="Control the mouse and the keyboard of a computer, and see its screen.",
        selector="action",
        members=members,
        properties=_SCREEN,
    )


_TAB_CLICK: Final = "target modifiers? tab_id?"
_BROWSER: Final = {
    "navigate": "url tab_id?",
    "list_tabs": "",
    "new_tab": "",
    "switch_tab": "tab_id",
    "close_tab": "tab_id",
    "read_page": "Read the page as a tree with references | depth? filter? ref? tab_id?",
    "get_page_text": "tab_id?",
    "read_console": "tab_id?",
    "read_network": "tab_id?",
    "find": "Find elements by a description | query tab_id?",
    "form_input": "Set the value of an element of a form | target=element value tab_id?",
    "file_upload": "target=element document_ids? paths? tab_id?",
    "scroll_to": "target=element tab_id?",
    "screenshot": "tab_id?",
    "zoom": "Take an enlarged screenshot of a region | region tab_id?",
    "left_click": _TAB_CLICK,
    "right_click": _TAB_CLICK,
    "middle_click": _TAB_CLICK,
    "double_click": _TAB_CLICK,
    "triple_click": _TAB_CLICK,
    "hover": "target tab_id?",
    "left_click_drag": "from target=spot tab_id?",
    "left_mouse_down": "target=spot tab_id?",
    "left_mouse_up": "target=spot tab_id?",
    "mouse_move": "target=spot tab_id?",
    "scroll": "target=spot scroll_direction scroll_amount? tab_id?",
    "type": "Type text at the focus | text tab_id?",
    "key": "Press a key, keys such as ctrl+a, or keys in turn | text repeat? tab_id?",
    "hold_key": "text duration tab_id?",
    "wait": "duration tab_id?",
    "javascript_exec": "Return the value of a JavaScript expression | text tab_id?",
}

#: The tools by type. Another version may have other inputs, so its type is unknown.
CLIENT_TOOLS: Final[Mapping[str, ClientTool]] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _OLD_EDITOR,
    "text_editor_20250124": _OLD_EDITOR,
    "text_editor_20250429": _NEW_EDITOR,
    "text_editor_20250728": _NEW_EDITOR,
    "memory_20250818": _MEMORY,
    "computer_20241022": _computer(_FIRST_ACTIONS),
    "computer_20250124": _computer(_ACTIONS),
    "computer_20251124": _computer({**_ACTIONS, **_ZOOM}),
    "computer_toolset_20260801": ClientTool(
        name="computer",
        description="on the computer",
        members={**_ACTIONS, "key": "Press a key or keys such as ctrl+s | text repeat?", **_ZOOM},
        properties=_SCREEN,
        is_toolset=True,
    ),
    "browser_toolset_20260801": ClientTool(
        name="browser",
        description="in the browser",
        members=_BROWSER,
        properties=_PAGE,
        is_toolset=True,
    ),
}
