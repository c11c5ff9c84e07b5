"""Images through the official SDKs, and a worker that is killed while it answers about one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.support.clients.service_log import ended
from tests.support.models.tiny_vision import picture
from tests.support.polling import scaled
from tests.support.processes.service import Service
from tests.support.processes.two_models import seeing_service

QUESTION = "What is on this picture?"
#: Many, so that the answer goes on while the worker is killed.
TOKENS = 400
EVENTS_BEFORE_DEATH = 4
WAIT_S = 60.0
DATA = picture(5).data
URL = f"data:image/png;base64,{DATA}"
OTHER = picture(6).data


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    yield from seeing_service(tmp_path_factory.mktemp("seeing"))


@pytest.fixture
def claude_sees(seeing: Service) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=seeing.base_url, api_key="local", max_retries=0, timeout=scaled(60)
    ) as client:
        yield client


@pytest.fixture
def oai_sees(seeing: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{seeing.base_url}/v1", api_key="local", max_retries=0, timeout=scaled(60)
    ) as client:
        yield client


def test_every_sdk_gets_the_same_answer_about_an_image(
    claude_sees: anthropic.Anthropic, oai_sees: openai.OpenAI
) -> None:
    asked = _asked(claude_sees, DATA)
    chat = oai_sees.chat.completions.create(
        model="tiny-vl",
        max_tokens=20,
        temperature=0,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": QUESTION},
                    {"type": "image_url", "image_url": {"url": URL}},
                ],
            }
        ],
    )
    response = oai_sees.responses.create(
        model="tiny-vl",
        max_output_tokens=20,
        temperature=0,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": QUESTION},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            }
        ],
    )
    text = _text(asked)
    assert text
    assert (chat.choices[0].message.content, response.output_text) == (text, text)
    assert _text(_asked(claude_sees, OTHER)) != text
    (item,) = oai_sees.responses.input_items.list(response.id).data
    assert URL in item.model_dump_json()


def test_a_model_that_sees_states_it_and_counts_the_tokens_of_an_image(
    claude_sees: anthropic.Anthropic,
) -> None:
    capabilities: Any = claude_sees.models.retrieve("tiny-vl").capabilities
    assert capabilities.image_input.supported
    counts = [
        claude_sees.messages.count_tokens(model="tiny-vl", messages=[_turn(data)]).input_tokens
        for data in (None, DATA)
    ]
    assert counts[1] >= counts[0] + 12


def test_a_killed_worker_goes_on_with_the_answer_about_an_image(seeing: Service) -> None:
    with httpx.Client(base_url=seeing.base_url, timeout=scaled(WAIT_S)) as http:
        whole = ended(http, _submitted(http, "undisturbed"))
        job_id = _submitted(http, "disturbed")
        _wait_for_events(http, job_id)
        seeing.part("worker").send_signal(signal.SIGKILL)
        job = ended(http, job_id)
    assert (job["status"], job["attempt"]) == ("completed", 2), job
    assert job["output"]["text"] == whole["output"]["text"]


def test_a_model_that_reads_text_only_refuses_an_image(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="reads text only: an image cannot be part"):
        claude.messages.create(model="semantic-demo", max_tokens=9, messages=[_turn(DATA)])
    later = claude.messages.create(
        model="semantic-demo",
        max_tokens=9,
        messages=[
            _turn(DATA),
            {"role": "assistant", "content": "A bee."},
            {"role": "user", "content": "Thank you."},
        ],
    )
    assert later.usage.output_tokens


def _turn(data: str | None) -> Any:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
    content = [{"type": "text", "text": QUESTION}, *([image] if data else [])]
    return {"role": "user", "content": content}


def _asked(client: anthropic.Anthropic, data: str) -> anthropic.types.Message:
    return client.messages.create(
        model="tiny-vl",
        max_tokens=20,
        extra_body={"temperature": 0},
        messages=[_turn(data)],
    )


def _text(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def _submitted(http: httpx.Client, agent: str) -> str:
    body = {
        "model": "tiny-vl",
        "max_tokens": TOKENS,
        "temperature": 0,
        "agent_id": agent,
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": QUESTION},
                    {"type": "image_url", "image_url": {"url": URL}},
                ],
            }
        ],
    }
    reply = http.post("/v1/jobs", json=body)
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def _wait_for_events(http: httpx.Client, job_id: str) -> None:
    with http.stream("GET", f"/v1/jobs/{job_id}/stream") as response:
        seen = 0
        for line in response.iter_lines():
            seen += line.startswith("event: text")
            if seen == EVENTS_BEFORE_DEATH:
                return
    raise AssertionError(f"{job_id} ended before the worker was killed")
