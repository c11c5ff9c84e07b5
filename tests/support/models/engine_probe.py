"""What engine tests ask an engine with, and where its items land."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from domain.chat import items as stream
from domain.chat.generation import GenerationTask, Outcome, PreparedPrompt
from domain.chat.items import Progress, StreamItem, Text
from domain.chat.logprobs import TokenLogprob
from domain.chat.ports import GenerationHandle, InferenceEngine
from domain.chat.request import ChatRequest, Message, ToolChoice
from domain.errors import QueueUnavailable
from domain.values import JobId, Priority, Sampling, SamplingWish
from tests.support.polling import scaled

#: Longest wait for anything in an engine test, in seconds.
PATIENCE_S = 60.0


class CollectingSink:
    """``ItemSink`` that keeps everything; ``away`` makes it refuse."""

    def __init__(self) -> None:
        self.items: dict[JobId, list[StreamItem]] = {}
        self.publishes = 0
        self.refused = 0
        self.away = False
        self._changed = threading.Condition()

    def publish(self, items: Sequence[tuple[JobId, StreamItem]]) -> None:
        with self._changed:
            if self.away:
                self.refused += 1
                self._changed.notify_all()
                raise QueueUnavailable("the test took the broker away")
            self.publishes += 1
            for job_id, item in items:
                self.items.setdefault(job_id, []).append(item)
            self._changed.notify_all()

    def numbered(self, job_id: str) -> list[StreamItem]:
        with self._changed:
            return [item for item in self.items.get(JobId(job_id), []) if item.n is not None]

    def progress(self, job_id: str) -> list[Progress]:
        with self._changed:
            bodies = [item.body for item in self.items.get(JobId(job_id), [])]
        return [body for body in bodies if isinstance(body, Progress)]

    def wait_for_items(self, job_id: str, count: int) -> list[StreamItem]:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.items.get(JobId(job_id), [])) >= count, scaled(PATIENCE_S)
            ), f"{job_id} never had {count} items"
        return self.numbered(job_id)

    def wait_for_refusals(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.refused >= count, scaled(PATIENCE_S))


def ask(
    text: str,
    *,
    max_tokens: int = 100,
    stop: tuple[str, ...] = (),
    thinking: bool = False,
    tools: tuple[Mapping[str, Any], ...] = (),
    parallel: bool = True,
    sampling: Sampling | None = None,
    logprobs: int | None = None,
) -> ChatRequest:
    return ChatRequest(
        model="any",
        messages=(Message(role="user", content=text),),
        max_tokens=max_tokens,
        stop=stop,
        thinking=thinking,
        tools=tools,
        tool_choice=ToolChoice(parallel=parallel),
        sampling=SamplingWish(**asdict(sampling or Sampling(temperature=0))),
        logprobs=logprobs,
    )


def submit(
    engine: InferenceEngine,
    job_id: str,
    request: ChatRequest,
    *,
    attempt: int = 1,
    emitted: Sequence[StreamItem] = (),
    priority: Priority = Priority.INTERACTIVE,
) -> GenerationHandle:
    """Submit a request as the attempt after one that emitted ``emitted``, and release it."""
    prompt = engine.prepare(request)
    return submit_prompt(
        engine,
        job_id,
        prompt,
        attempt=attempt,
        emitted=emitted,
        stop=request.stop,
        priority=priority,
    )


def submit_prompt(
    engine: InferenceEngine,
    job_id: str,
    prompt: PreparedPrompt,
    *,
    attempt: int = 1,
    emitted: Sequence[StreamItem] = (),
    stop: tuple[str, ...] = (),
    priority: Priority = Priority.INTERACTIVE,
    agent: str | None = None,
) -> GenerationHandle:
    """Submit a rendered prompt and release it."""
    handle = engine.submit(
        GenerationTask(
            job_id=JobId(job_id),
            attempt=attempt,
            prompt=prompt,
            emitted=ids_of(emitted),
            first_item=len(emitted) + 1,
            stop=stop,
            known=known_of(emitted),
            priority=priority,
            agent=agent,
        )
    )
    handle.release()
    return handle


def finished(handle: GenerationHandle) -> Outcome:
    outcome = handle.wait(scaled(PATIENCE_S))
    assert outcome is not None, "the generation never ended"
    return outcome


def ids_of(items: Sequence[StreamItem]) -> tuple[int, ...]:
    return tuple(token for item in items for token in stream.ids_of(item.body))


def known_of(items: Sequence[StreamItem]) -> dict[int, TokenLogprob]:
    """Return the logprobs that the items carry, by token index."""
    return {value.index: value for item in items for value in stream.logprobs_of(item.body)}


def logprobs_in(items: Sequence[StreamItem]) -> tuple[TokenLogprob, ...]:
    """Return the logprobs of the text items."""
    bodies = [item.body for item in items]
    return tuple(value for body in bodies if isinstance(body, Text) for value in body.logprobs)


def text_in(items: Sequence[StreamItem]) -> str:
    return "".join(item.body.text for item in items if isinstance(item.body, Text))
