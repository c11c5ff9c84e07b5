"""``TokenCounter``, on the fake, on fakeredis and on both brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import redis

from domain.chat.request import ChatRequest, Message
from domain.errors import EngineFailure, InvalidRequest, ModelNotReady, QueueUnavailable
from domain.job.prepare_prompt import PromptTokens, TokenCounter
from domain.values import SamplingWish
from ops.broker.client import Keys, connect
from ops.broker.worker_requests import RedisTokenCounter, TokenCountServer
from tests.support.fakes.broker import FakeTokenCounter
from tests.support.processes.brokers import client_of

Count = Callable[[ChatRequest], int]


def _request(text: str) -> ChatRequest:
    messages = (Message(role="user", content=text),)
    return ChatRequest(model="m", messages=messages, max_tokens=1, sampling=SamplingWish())


def _words(request: ChatRequest) -> int:
    text = request.messages[-1].content
    if text == "refused":
        raise InvalidRequest("the template refuses it", field="messages")
    if text == "broken":
        raise RuntimeError("a defect")
    return len(text.split())


@pytest.fixture(params=["fake", "fakeredis", "valkey", "redis"])
def counter(request: pytest.FixtureRequest, keys: Keys) -> Iterator[TokenCounter]:
    if request.param == "fake":
        yield FakeTokenCounter(_words)
        return
    client = client_of(request, request.param)
    with ExitStack() as stack:
        stack.callback(client.close)
        stack.enter_context(TokenCountServer(client, keys, FakeTokenCounter(_words)))
        yield RedisTokenCounter(client, keys)


def test_every_asker_gets_the_answer_to_its_own_question(counter: TokenCounter) -> None:
    texts = ["word " * n for n in range(1, 13)]
    with ThreadPoolExecutor(len(texts)) as pool:
        counts = list(pool.map(lambda text: counter.count(_request(text)), texts))
    assert counts == list(range(1, 13))


def test_tokens_and_text_of_a_prompt_come_back(counter: TokenCounter) -> None:
    assert counter.read(_request("Hi")) == PromptTokens((72, 105), "Hi")


def test_refused_prompt_is_refused_to_its_asker_alone(counter: TokenCounter) -> None:
    with pytest.raises(InvalidRequest, match="the template refuses it") as refused:
        counter.count(_request("refused"))
    assert refused.value.field == "messages"
    with pytest.raises(EngineFailure, match="could not be counted"):
        counter.count(_request("broken"))
    assert counter.count(_request("two words")) == 2


def test_request_that_no_worker_takes_times_out(valkey_url: str, keys: Keys) -> None:
    client = connect(valkey_url)
    with ExitStack() as stack:
        stack.callback(client.close)
        with pytest.raises(ModelNotReady):
            RedisTokenCounter(client, keys, timeout_s=0.05).count(_request("hi"))


def test_broker_that_is_away_is_named() -> None:
    client: redis.Redis = connect("redis://127.0.0.1:1")
    with ExitStack() as stack:
        stack.callback(client.close)
        with pytest.raises(QueueUnavailable):
            RedisTokenCounter(client, Keys("x")).count(_request("hi"))
