"""Prompts with tools equal those that transformers renders from the models' own templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx_lm
import pytest

from domain.chat.request import ChatRequest, Message, ToolCall, ToolChoice
from domain.values import SamplingWish
from tests.support.clients.npm import missing
from tests.support.models.real_packages import Unavailable
from tests.support.models.real_tokenizers import TOKENIZERS, download_tokenizer
from worker.engine.mlx.model.tool_families import channel_format_of, tool_format_of
from worker.engine.mlx.prompt.renderer import PromptRenderer

pytestmark = pytest.mark.nightly

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Returns the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name."}},
            "required": ["city"],
        },
    },
}
CALL = {"city": "Łódź"}
TALK = (
    Message(role="system", content="You are brief."),
    Message(role="user", content="What is the weather in Łódź?\n\n1. now  2. later"),
    Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(id="call_1", name="get_weather", arguments=CALL),),
    ),
    Message(role="tool", content='{"sky": "clear"}', tool_call_id="call_1"),
)


def _foreign(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as transformers takes them."""
    found: list[dict[str, Any]] = []
    for one in messages:
        message: dict[str, Any] = {"role": one.role, "content": one.content}
        if one.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for call in one.tool_calls
            ]
        if one.tool_call_id:
            message["tool_call_id"] = one.tool_call_id
        found.append(message)
    return found


@pytest.fixture(scope="module", params=sorted(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory: Path = tmp_path_factory.mktemp("tokenizers") / request.param
    try:
        return mlx_lm.utils.load_tokenizer(download_tokenizer(request.param, directory))
    except Unavailable as error:
        missing(str(error))


@pytest.mark.parametrize("count", [2, 4], ids=["a question", "a result"])
def test_prompt_with_tools_is_that_of_transformers(tokenizer: Any, count: int) -> None:
    formats = tool_format_of(tokenizer), channel_format_of(tokenizer)
    request = ChatRequest(
        model="m",
        messages=TALK[:count],
        max_tokens=5,
        sampling=SamplingWish(),
        tools=(TOOL,),
        tool_choice=ToolChoice(),
        thinking=False,
    )
    rendered = PromptRenderer(tokenizer, *formats).render(request)
    expected = tokenizer._tokenizer.apply_chat_template(
        _foreign(request.messages),
        tools=[TOOL],
        add_generation_prompt=True,
        enable_thinking=False,
        tokenize=False,
    )
    assert tokenizer.decode(list(rendered.tokens)) == expected
    assert list(rendered.tokens) == tokenizer.encode(expected, add_special_tokens=False)
