"""Questions after the length of a prompt: a list of questions, and a list for each answer.

The api asks and waits; the worker, which has the tokenizer, answers one question after the other.
Nothing here is worth keeping: a question that nobody takes fades, and its asker is told to come
again.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

import redis

from domain.chat.request import ChatRequest
from domain.errors import EngineFailure, InvalidRequest, ModelNotReady, Overloaded
from ops.adapters.redis.client import BLOCK_MAX_S, Keys, broker_errors

#: How long a question waits for its answer. A worker reads 20,000 tokens in about 50 ms.
ANSWER_TIMEOUT_S = 20.0
#: Questions that may wait; Claude Code asks 28 at once.
QUESTIONS_MAX = 256
#: Pause after a lost connection.
RETRY_S = 0.5

# KEYS: questions. ARGV: most that may wait, TTL in seconds, question.
_ASK = """
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


class RedisTokenCounter:
    """``domain.usecases.jobs.count_tokens.TokenCounter``: asks the worker.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        timeout_s: How long to wait for an answer.
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._client = client
        self._keys = keys
        self._timeout_s = timeout_s
        self._ask: Any = client.register_script(_ASK)

    def count(self, request: ChatRequest) -> int:
        """Ask and wait for the answer."""
        name = uuid.uuid4().hex
        question = name.encode() + b" " + request.to_bytes()
        with broker_errors():
            limits = [QUESTIONS_MAX, int(self._timeout_s) + 1]
            asked = self._ask(keys=[self._keys.questions], args=[*limits, question])
        if not asked:
            msg = "too many prompts wait to be counted"
            raise Overloaded(msg)
        return self._answer(name)

    def _answer(self, name: str) -> int:
        deadline = time.monotonic() + self._timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            with broker_errors():
                reply: Any = self._client.blpop(
                    [self._keys.answer(name)], timeout=max(0.01, min(BLOCK_MAX_S, left_s))
                )
            if reply is not None:
                return _read(json.loads(reply[1]))
        msg = "no worker with a loaded model has counted the prompt in time"
        raise ModelNotReady(msg)


def _read(answer: dict[str, Any]) -> int:
    if "tokens" in answer:
        return int(answer["tokens"])
    if "refused" in answer:
        raise InvalidRequest(answer["refused"], field=answer["field"])
    msg = "the prompt could not be counted"
    raise EngineFailure(msg)


class TokenCountServer:
    """A thread that answers questions, for the worker. A context manager.

    Args:
        client: Made by ``connect``.
        keys: Key names.
        count: Returns the length of a request's prompt; raises ``InvalidRequest``.
    """

    def __init__(
        self, client: redis.Redis, keys: Keys, *, count: Callable[[ChatRequest], int]
    ) -> None:
        self._client = client
        self._keys = keys
        self._count = count
        self._stop = threading.Event()
        self._log = logging.getLogger(__name__)
        self._thread = threading.Thread(target=self._run, name="counting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; returns within about ``BLOCK_MAX_S``."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                taken: Any = self._client.blpop([self._keys.questions], timeout=BLOCK_MAX_S)
                if taken is not None:
                    self._serve(taken[1])
            except (redis.RedisError, OSError) as error:
                self._log.warning("lost the questions, trying again: %s", error)
                self._stop.wait(RETRY_S)

    def _serve(self, question: bytes) -> None:
        name, _, payload = question.partition(b" ")
        key = self._keys.answer(name.decode())
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(key, json.dumps(self._told(payload)))
            pipeline.expire(key, int(ANSWER_TIMEOUT_S) + 1)
            pipeline.execute()

    def _told(self, payload: bytes) -> dict[str, Any]:
        try:
            return {"tokens": self._count(ChatRequest.from_bytes(payload))}
        except InvalidRequest as error:
            return {"refused": error.message, "field": error.field}
        except Exception:  # noqa: BLE001 - one question must not end the answers to others
            self._log.exception("a prompt could not be counted")
            return {}
