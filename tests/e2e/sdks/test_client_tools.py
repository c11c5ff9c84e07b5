"""Sessions of the unmodified SDKs with the vendors' tools that the client runs.

A script has the lines of the model; the tests run the commands and edit the files.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic.lib.tools import BetaAbstractMemoryTool
from anthropic.types.beta import BetaMemoryTool20250818ViewCommand
from openai.types.responses import (
    ResponseApplyPatchToolCall,
    ResponseComputerToolCall,
    ResponseFunctionShellToolCall,
)

from tests.support.clients import npm, pypi
from tests.support.models.tiny_vision import picture
from tests.support.polling import scaled
from tests.support.processes.scripted_service import call, line
from tests.support.processes.service import Service

_MODEL = "semantic-demo"
_EDITOR = "str_replace_based_edit_tool"
_WEATHER: Any = {
    "name": "get_weather",
    "description": "Report the weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "defer_loading": True,
}
_TOOLSETS: Any = {
    "computer": [{"type": "computer_toolset_20260801"}],
    "browser": [{"type": "browser_toolset_20260801"}],
    "one tool": [
        {"type": "computer_20251124", "name": "computer", "display_width_px": 800,
         "display_height_px": 600},
    ],
}  # fmt: skip
_SCREENSHOT = picture(1).url
_CLICK = {"type": "click", "button": "left", "x": 40, "y": 60}
_SESSION = npm.ROOT / "tests/support/clients/langgraph_session.py"
_LANGGRAPH = ("langgraph==1.2.22", "langchain==1.5.2", "langchain-openai==1.7.4",
              "langchain-anthropic==1.7.10")  # fmt: skip
_PATCH = {"type": "update_file", "path": "made.txt", "diff": "@@\n-one\n+two\n"}
_SCRIPT = [
    line("of the weather?", call("tool_search_tool_bm25", query="weather")),
    line("get_weather", call("get_weather", city="Paris")),
    line("Sunny.", "It is sunny."),
    line("what you know of me", call("memory", command="view", path="/memories")),
    line("You like tea.", "You like tea, I know."),
    line("Write one", call("bash", command="printf one > made.txt")),
    line("bash is done", call(_EDITOR, command="str_replace", path="made.txt", old_str="one",
                              new_str="two")),
    line("editor is done", "The file has two."),
    line("By the shell", call("shell", commands=["printf one > made.txt", "cat made.txt"])),
    line("[exit code 0]", call("apply_patch", operation=_PATCH)),
    line("patch is done", "The patch is in."),
    line("Click by computer.", call("computer__left_click", coordinate=[40, 60])),
    line("Click by browser.", call("browser__navigate", url="localhost")),
    line("navigate is done", call("browser__left_click", target={"type": "ref", "ref": "r1"})),
    line("Click by one tool.", call("computer", action="left_click", coordinate=[40, 60])),
    line("Click by actions.", call("computer", actions=[_CLICK, {"type": "screenshot"}])),
    line("left_click is done", "It is clicked."),
    line("reads text only", "No image for me."),
    line("What was clicked?", "The button was."),
    line("Write by LangGraph.", call("write_file", text="three")),
    line("The file has three.", "It is written."),
    line("What was written?", "A three was."),
]  # fmt: skip


@pytest.fixture
def service(scripted: Callable[[Sequence[dict[str, Any]]], Service]) -> Service:
    return scripted(_SCRIPT)


def _edit(folder: Path, edit: dict[str, Any]) -> str:
    file = folder / edit["path"]
    assert edit["command"] == "str_replace"
    file.write_text(file.read_text().replace(edit["old_str"], edit["new_str"]))
    return "The editor is done."


def _run(folder: Path, command: str) -> str:
    ended = subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True
    )
    return ended.stdout


def test_claude_runs_bash_and_the_editor(claude: anthropic.Anthropic, tmp_path: Path) -> None:
    messages: list[Any] = [{"role": "user", "content": "Write one, then make it two."}]
    turns: list[anthropic.types.Message] = []
    while not turns or turns[-1].stop_reason == "tool_use":
        with claude.messages.stream(
            model=_MODEL,
            max_tokens=200,
            tools=[
                {"type": "bash_20250124", "name": "bash"},
                {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
            ],
            messages=messages,
        ) as stream:
            turns.append(stream.get_final_message())
        messages.append({"role": "assistant", "content": turns[-1].content})
        used = turns[-1].content[0]
        if used.type != "tool_use":
            break
        given: Any = used.input
        if used.name == "bash":
            result = _run(tmp_path, given["command"]) + "The bash is done."
        else:
            result = _edit(tmp_path, given)
        block = {"type": "tool_result", "tool_use_id": used.id, "content": result}
        messages.append({"role": "user", "content": [block]})
    assert [one.stop_reason for one in turns] == ["tool_use", "tool_use", "end_turn"]
    assert (tmp_path / "made.txt").read_text() == "two"
    assert turns[-1].content[0].text == "The file has two."  # type: ignore[union-attr]  # a text


def test_a_tool_that_a_search_found_is_called_in_the_turn_that_goes_on(
    claude: anthropic.Anthropic,
) -> None:
    asked: Any = [{"role": "user", "content": "What of the weather?"}]
    tools: Any = [
        {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
        _WEATHER,
    ]
    paused = claude.messages.create(model=_MODEL, max_tokens=200, tools=tools, messages=asked)
    assert paused.stop_reason == "pause_turn"
    asked.append({"role": "assistant", "content": paused.content})
    called = claude.messages.create(model=_MODEL, max_tokens=200, tools=tools, messages=asked)
    (used,) = called.content
    assert used.type == "tool_use"
    assert (used.name, used.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": used.id, "content": "Sunny."}
    asked += [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [result]},
    ]
    last = claude.messages.create(model=_MODEL, max_tokens=200, tools=tools, messages=asked)
    assert last.content[0].text == "It is sunny."  # type: ignore[union-attr]  # a text ends it


class _Memory(BetaAbstractMemoryTool):
    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        assert command.path == "/memories"
        return "You like tea."

    def create(self, command: Any) -> str:
        raise NotImplementedError

    str_replace = insert = delete = rename = create


def test_the_sdks_memory_tool_runs_in_its_runner(claude: anthropic.Anthropic) -> None:
    last = claude.beta.messages.tool_runner(
        model=_MODEL,
        max_tokens=200,
        tools=[_Memory()],
        thread=False,
        messages=[{"role": "user", "content": "Tell me what you know of me."}],
    ).until_done()
    assert last.content[0].text == "You like tea, I know."  # type: ignore[union-attr]  # a text


def test_openai_runs_the_shell_and_applies_a_patch(oai: openai.OpenAI, tmp_path: Path) -> None:
    tools: Any = [{"type": "shell", "environment": {"type": "local"}}, {"type": "apply_patch"}]
    asked: dict[str, Any] = {"model": _MODEL, "tools": tools, "max_output_tokens": 200}
    with oai.responses.stream(input="By the shell, write one.", **asked) as stream:
        events = [event.type for event in stream]
        first = stream.get_final_response()
    assert "response.shell_call_command.done" in events
    (ran,) = first.output
    assert isinstance(ran, ResponseFunctionShellToolCall)
    outputs = [
        {"stdout": _run(tmp_path, command), "stderr": "",
         "outcome": {"type": "exit", "exit_code": 0}}
        for command in ran.action.commands
    ]  # fmt: skip
    result: Any = {"type": "shell_call_output", "call_id": ran.call_id, "output": outputs}
    second = oai.responses.create(input=[result], previous_response_id=first.id, **asked)
    (patch,) = second.output
    assert isinstance(patch, ResponseApplyPatchToolCall)
    assert patch.operation.model_dump() == _PATCH
    (tmp_path / patch.operation.path).write_text("two")
    # The client may also send the whole conversation back, as it has it.
    given: Any = [
        {"role": "user", "content": "By the shell, write one."},
        ran.model_dump(exclude_none=True),
        result,
        patch.model_dump(exclude_none=True),
        {"type": "apply_patch_call_output", "call_id": patch.call_id, "status": "completed",
         "output": "The patch is done."},
    ]  # fmt: skip
    third = oai.responses.create(input=given, **asked)
    assert third.output_text == "The patch is in."
    assert third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens


@pytest.mark.parametrize(
    ("family", "made"),
    [
        ("computer", [("computer", "left_click", {"coordinate": [40, 60]})]),
        (
            "browser",
            [
                ("browser", "navigate", {"url": "localhost"}),
                ("browser", "left_click", {"target": {"type": "ref", "ref": "r1"}}),
            ],
        ),
        ("one tool", [(None, "computer", {"action": "left_click", "coordinate": [40, 60]})]),
    ],
)
def test_claude_controls_a_screen(
    claude: anthropic.Anthropic, family: str, made: list[tuple[str | None, str, dict[str, Any]]]
) -> None:
    messages: list[Any] = [{"role": "user", "content": f"Click by {family}."}]
    tools = _TOOLSETS[family]

    def turn() -> anthropic.types.beta.BetaMessage:
        with claude.beta.messages.stream(
            model=_MODEL, max_tokens=200, tools=tools, messages=messages
        ) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        return answer

    for toolset, name, given in made:
        (used,) = turn().content
        assert used.type == "tool_use"
        assert (used.toolset_name, used.name, used.input) == (toolset, name, given)
        done = [{"type": "text", "text": f"{given.get('action', name)} is done"}]
        block = {"type": "tool_result", "tool_use_id": used.id, "content": done}
        messages.append({"role": "user", "content": [block]})
    assert turn().content[0].text == "It is clicked."  # type: ignore[union-attr]  # a text
    messages.append({"role": "user", "content": "What was clicked?"})
    last = turn()
    assert last.content[0].text == "The button was."  # type: ignore[union-attr]  # a text
    assert last.usage.cache_read_input_tokens


def test_openai_controls_a_computer(oai: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": _MODEL, "max_output_tokens": 200}
    asked["tools"] = [{"type": "computer"}]
    with oai.responses.stream(input="Click by actions.", **asked) as stream:
        list(stream)
        first = stream.get_final_response()
    (made,) = first.output
    assert isinstance(made, ResponseComputerToolCall)
    assert made.actions is not None
    assert [one.to_dict() for one in made.actions] == [_CLICK, {"type": "screenshot"}]
    seen = {"type": "computer_screenshot", "image_url": _SCREENSHOT}
    result: Any = {"type": "computer_call_output", "call_id": made.call_id, "output": seen}
    second = oai.responses.create(input=[result], previous_response_id=first.id, **asked)
    assert second.output_text == "No image for me."
    asked["previous_response_id"] = second.id
    third = oai.responses.create(input="What was clicked?", **asked)
    assert third.output_text == "The button was."
    assert third.usage is not None
    assert third.usage.input_tokens_details.cached_tokens


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["chat completions", "messages"])
def test_an_agent_of_langgraph_runs_a_tool_and_keeps_its_thread(
    protocol: str, service: Service, tmp_path: Path
) -> None:
    python = pypi.install("langgraph-1.2.22", "python", *_LANGGRAPH)
    done = subprocess.run(
        [python, _SESSION, service.base_url, protocol],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=scaled(300),
    )  # fmt: skip
    assert (tmp_path / "made.txt").read_text() == "three", done.stderr
    assert done.stdout.splitlines() == ["It is written.", "A three was."]
