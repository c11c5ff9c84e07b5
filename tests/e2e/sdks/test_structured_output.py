"""Answers and arguments that match their schema, through the official SDKs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema_rs
import openai
import pydantic
import pytest

from tests.support.polling import scaled
from tests.support.processes.service import Service


class _Report(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=20)
    degrees: int = pydantic.Field(ge=-50, le=50)
    sky: str = pydantic.Field(pattern="^(clear|cloudy)$")


_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "degrees": {"type": "integer", "minimum": -50, "maximum": 50},
        "sky": {"enum": ["clear", "cloudy"]},
    },
    "required": ["city", "degrees", "sky"],
    "additionalProperties": False,
}
_TOOLS = Path(__file__).parents[2] / "fixtures" / "tools" / "coding_agent.json"
_ASK: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
_UNKEPT: dict[str, Any] = {"type": "array", "uniqueItems": True}


def _matches(text: str) -> None:
    jsonschema_rs.validator_for(_SCHEMA).validate(json.loads(text))


@pytest.mark.parametrize("thinking", [False, True])
def test_anthropic_format_holds_at_full_temperature(
    claude: anthropic.Anthropic, *, thinking: bool
) -> None:
    more: dict[str, Any] = {"thinking": {"type": "adaptive"}} if thinking else {}
    message = claude.messages.create(
        model="gpt-m",
        max_tokens=600,
        messages=_ASK,
        output_config={"format": {"type": "json_schema", "schema": _SCHEMA}},
        extra_body={"seed": 1, **more},
    )
    texts = [block.text for block in message.content if block.type == "text"]
    if message.stop_reason == "end_turn":
        _matches("".join(texts))
    else:
        assert message.stop_reason == "max_tokens"


def test_openai_model_parses(oai: openai.OpenAI) -> None:
    reply = oai.chat.completions.parse(
        model="gpt-m", messages=_ASK, response_format=_Report, max_tokens=400, seed=2, temperature=1
    )
    assert reply.choices[0].finish_reason == "stop"
    assert isinstance(reply.choices[0].message.parsed, _Report)


def test_openai_object_streams(oai: openai.OpenAI) -> None:
    chunks = oai.chat.completions.create(
        model="gpt-m",
        messages=_ASK,
        response_format={"type": "json_object"},
        max_tokens=60,
        temperature=0,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.lstrip().startswith("{")


def test_a_schema_that_cannot_be_kept_is_a_400(
    oai: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": _UNKEPT}}
    form["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        oai.chat.completions.create(model="gpt-m", messages=_ASK, response_format=form)
    with pytest.raises(anthropic.BadRequestError, match="uniqueItems"):
        claude.messages.create(
            model="gpt-m",
            max_tokens=9,
            messages=_ASK,
            output_config={"format": {"type": "json_schema", "schema": _UNKEPT}},
        )
    form["json_schema"]["strict"] = False
    reply = oai.chat.completions.create(
        model="gpt-m", messages=_ASK, response_format=form, max_tokens=20, temperature=0
    )
    assert (reply.choices[0].message.content or "").lstrip().startswith("[")


def test_a_schema_beyond_the_bounds_is_a_400_or_is_named_in_a_header(oai: openai.OpenAI) -> None:
    costly: Any = {
        "type": "object",
        "properties": {"n": {"type": "integer", "multipleOf": 999_983}},
    }
    form: Any = {"name": "x", "schema": costly, "strict": True}
    asked: Any = {"model": "gpt-m", "messages": _ASK, "max_tokens": 20, "temperature": 0}
    with pytest.raises(openai.BadRequestError, match="multipleOf"):
        oai.chat.completions.create(
            **asked, response_format={"type": "json_schema", "json_schema": form}
        )
    form["strict"] = False
    reply = oai.chat.completions.with_raw_response.create(
        **asked, response_format={"type": "json_schema", "json_schema": form}
    )
    assert reply.headers["x-semantic-warning"].startswith("schema of the answer: multipleOf")
    assert (reply.parse().choices[0].message.content or "").lstrip().startswith("{")


def test_forced_arguments_match_whatever_is_asked(claude: anthropic.Anthropic) -> None:
    tool: Any = {"name": "report", "description": "Say the weather", "input_schema": _SCHEMA}
    for seed in range(3):
        message = claude.messages.create(
            model="gpt-m",
            max_tokens=300,
            messages=_ASK,
            tools=[tool],
            tool_choice={"type": "tool", "name": "report"},
            extra_body={"seed": seed},
        )
        (call,) = (block for block in message.content if block.type == "tool_use")
        if message.stop_reason == "tool_use":
            jsonschema_rs.validator_for(_SCHEMA).validate(call.input)
        else:
            assert message.stop_reason == "max_tokens"


def test_claude_codes_own_tools_are_taken(service: Service) -> None:
    tools = json.loads(_TOOLS.read_text())
    reply = httpx.post(
        f"{service.base_url}/v1/messages",
        json={
            "model": "gpt-m",
            "max_tokens": 200,
            "messages": [{"role": "user", "content": "Run ls"}],
            "tools": tools,
            "tool_choice": {"type": "any"},
            "temperature": 0,
        },
        timeout=scaled(60),
    ).raise_for_status()
    call = reply.json()["content"][0]
    assert call["name"] in {tool["name"] for tool in tools}
