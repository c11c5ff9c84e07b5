"""Several answers, and texts without a template, through the official SDK in strict mode."""

from __future__ import annotations

from typing import Any

import httpx
import mlx_lm.utils
import openai
import pytest

from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.service import Service
from worker.engine.mlx.model.loader import find_model

_MODEL = "semantic-demo"
_ASK: Any = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def service(mortal: Service) -> Service:
    return mortal


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return mlx_lm.utils.load_tokenizer(find_model(_MODEL))


@pytest.fixture(scope="module")
def written(tokenizer: Any) -> str:
    """Return the question as the chat template writes it."""
    text: str = tokenizer.apply_chat_template(
        _ASK, add_generation_prompt=True, enable_thinking=False, tokenize=False
    )
    return text


def _said(reply: Any) -> list[str]:
    return [choice.message.content for choice in reply.choices]


def _streamed(service: Service, path: str, body: dict[str, Any]) -> tuple[list[str], Any]:
    """Return the texts of a stream by index and its usage.

    Read without the SDK, which refuses the ``null`` that the vendor sends as ``finish_reason``.
    """
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="x", max_retries=0) as client:
        chunks = list(
            client.post(
                path,
                body=body | options,
                cast_to=object,
                stream=True,
                stream_cls=openai.Stream[Any],
            )
        )
    texts: dict[int, str] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        texts[choice["index"]] = texts.get(choice["index"], "") + piece
    return [texts[index] for index in sorted(texts)], chunks[-1]["usage"]


def test_each_answer_is_the_one_that_its_seed_gives(oai: openai.OpenAI) -> None:
    def ask(**more: Any) -> Any:
        return oai.chat.completions.create(
            model=_MODEL, messages=_ASK, temperature=1, max_tokens=24, **more
        )

    together = ask(n=3, seed=40)
    alone = [ask(seed=seed) for seed in (40, 41, 42)]
    assert _said(together) == [text for one in alone for text in _said(one)]
    assert len(set(_said(together))) > 1
    assert together.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert together.usage.completion_tokens == sum(one.usage.completion_tokens for one in alone)


def test_prompt_of_several_answers_is_computed_once(oai: openai.OpenAI, service: Service) -> None:
    long = "Remember this. " * 400
    reply = oai.chat.completions.with_raw_response.create(
        model=_MODEL, messages=[{"role": "user", "content": long}], n=4, max_tokens=4
    )
    names = reply.headers["x-semantic-job"].split(", ")
    usages = [
        httpx.get(f"{service.base_url}/v1/jobs/{n}", timeout=scaled(WITHIN_S)).json()["usage"]
        for n in names
    ]
    prompt = usages[0]["prompt_tokens"]
    assert len(usages) == 4
    assert prompt > 1000
    computed = sum(one["prompt_tokens"] - one["cached_tokens"] for one in usages)
    assert computed < prompt + 3 * 256
    assert reply.parse().usage.prompt_tokens == prompt  # type: ignore[union-attr]


def test_text_is_gone_on_from_as_it_stands(
    oai: openai.OpenAI, tokenizer: Any, written: str
) -> None:
    chat = oai.chat.completions.create(
        model=_MODEL, messages=_ASK, temperature=0, max_tokens=24, stop=["."]
    )
    text = oai.completions.create(
        model=_MODEL, prompt=written, temperature=0, max_tokens=24, stop=["."]
    )
    assert text.choices[0].text == chat.choices[0].message.content
    assert chat.usage is not None
    assert text.usage is not None
    assert text.usage.prompt_tokens == chat.usage.prompt_tokens
    ids = tokenizer.encode(written)
    assert text.usage.prompt_tokens == len(ids)
    again = oai.completions.create(
        model=_MODEL, prompt=[ids, ids], temperature=0, max_tokens=24, stop=["."], echo=True, n=2
    )
    assert [choice.text for choice in again.choices] == [written + text.choices[0].text] * 4
    assert again.usage is not None
    assert again.usage.prompt_tokens == 2 * len(ids)


def test_default_length_is_the_vendors(oai: openai.OpenAI) -> None:
    reply = oai.completions.create(model=_MODEL, prompt="Once", temperature=0)
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 16


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "end"}, "suffix"),
        ({"n": 9}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": [10**9]}, "prompt"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"prompt": ""}, "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_a_400(
    oai: openai.OpenAI, fields: dict[str, Any], param: str, *, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        oai.completions.create(**({"model": _MODEL, "prompt": "a"} | fields), stream=stream)
    assert param in f"{caught.value.param} {caught.value.message}"


def test_streams_say_what_whole_answers_say(oai: openai.OpenAI, service: Service) -> None:
    body = {"model": _MODEL, "temperature": 1, "seed": 3, "max_tokens": 12, "n": 2}
    whole = oai.completions.create(**(body | {"prompt": ["Once", "The"]}))  # type: ignore[call-overload]
    texts, usage = _streamed(service, "/completions", body | {"prompt": ["Once", "The"]})
    assert texts == [choice.text for choice in whole.choices]
    assert usage["total_tokens"] == whole.usage.total_tokens
    chat = oai.chat.completions.create(**(body | {"messages": _ASK}))  # type: ignore[call-overload]
    texts, usage = _streamed(service, "/chat/completions", body | {"messages": _ASK})
    assert texts == _said(chat)
    assert usage["total_tokens"] == chat.usage.total_tokens


@pytest.mark.nightly  # by day test_batch_endpoints.py kills the worker under this endpoint
def test_answers_survive_the_worker_all_of_them(service: Service, written: str) -> None:
    newest = _events(service, f"before={2**31}&limit=1")
    body = {
        "model": _MODEL, "prompt": written, "echo": True, "n": 3, "seed": 9,
        "temperature": 1, "max_tokens": 160, "stream": True,
    }  # fmt: skip
    texts = {0: "", 1: "", 2: ""}
    killed = False
    with openai.OpenAI(
        base_url=f"{service.base_url}/v1", api_key="x", timeout=scaled(300)
    ) as client:
        for chunk in client.completions.create(**body):  # type: ignore[call-overload]
            for choice in chunk.choices:
                texts[choice.index] += choice.text
            if not killed and all(len(text) > len(written) + 8 for text in texts.values()):
                killed = True
                service.kill_part("worker")
        service.wait_ready()
        whole = client.completions.create(**(body | {"stream": False}))  # type: ignore[call-overload]
    assert killed
    assert [choice.text for choice in whole.choices] == [texts[0], texts[1], texts[2]]
    begun = newest[0]["position"] if newest else 0
    events = _events(service, f"type=AttemptStarted&after={begun}")
    assert max(event["data"]["attempt"] for event in events) == 2


def _events(service: Service, query: str) -> list[dict[str, Any]]:
    url = f"{service.base_url}/v1/events?{query}"
    found: list[dict[str, Any]] = httpx.get(url, timeout=scaled(WITHIN_S)).json()["data"]
    return found


def test_tokens_of_a_text_are_those_of_the_tokenizer(service: Service, tokenizer: Any) -> None:
    text = "Once upon a time <|im_end|>"

    def post(path: str, body: dict[str, Any]) -> Any:
        return httpx.post(f"{service.base_url}{path}", json=body, timeout=scaled(WITHIN_S)).json()

    ids = tokenizer.encode(text, add_special_tokens=False)
    assert post("/tokenize", {"content": text}) == {"tokens": ids, "count": len(ids)}
    assert post("/v1/detokenize", {"tokens": ids})["content"] == tokenizer.decode(ids)
    chat = post("/tokenize", {"model": _MODEL, "messages": _ASK})
    assert chat["tokens"] == tokenizer.apply_chat_template(
        _ASK, add_generation_prompt=True, enable_thinking=False
    )
