"""A prompt starts with the previous prompt and its sampled answer, in any form of the echo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.divergence import RecordedAnswer
from domain.chat.generation import EmittedCall
from domain.chat.request import ChatRequest, Message, RawPrompt, ToolCall, ToolChoice
from domain.chat.stored_answer import StoredAnswer
from domain.values import Digest, JobId, PromptEncoding, SamplingWish, digest_of
from worker.engine.mlx.prompt.incremental_prompt import IncrementalPrompts
from worker.engine.ports import RenderedPrompt

FINGERPRINT = "model-1"
_TOOL: Mapping[str, Any] = {"type": "function", "function": {"name": "Bash", "parameters": {}}}
_NEWEST = PromptEncoding.MARKS_AS_TEXT


class PlainRenderer:
    """Writes a turn as bytes; an answer by its words alone, so never as it was sampled."""

    def __init__(self, *, cuts: bool = True) -> None:
        self.cuts = cuts
        self.rendered = 0

    def render(self, request: ChatRequest, encoding: PromptEncoding = _NEWEST) -> RenderedPrompt:
        self.rendered += 1
        start = (len(_ids(request.messages[:1], encoding)),)
        ids = _ids(request.messages, encoding) + _ids(())
        return RenderedPrompt(ids, message_starts=start)

    def has_only_messages(self, request: ChatRequest) -> bool:
        return request.tool_choice.mode == "auto"

    def shares_preamble(self, before: ChatRequest, request: ChatRequest) -> bool:
        return (before.effort, before.thinking) == (request.effort, request.thinking)

    def render_after(
        self, request: ChatRequest, turn: int, encoding: PromptEncoding
    ) -> RenderedPrompt | None:
        return (
            RenderedPrompt(
                (0, *_ids(request.messages[turn + 1 :], encoding), *_ids(())), last_message=1
            )
            if self.cuts
            else None
        )


def _ids(messages: tuple[Message, ...], encoding: PromptEncoding = _NEWEST) -> tuple[int, ...]:
    mark = "<" if encoding == _NEWEST else "\x00"
    texts = [
        f"{mark}{one.role}>{one.content}{[dict(call.arguments) for call in one.tool_calls]}"
        for one in messages
    ]
    return tuple("".join(texts or ["<assistant>"]).encode())


@dataclass
class Answers:
    """``SpokenAnswers`` in a dictionary."""

    recorded: dict[str, RecordedAnswer] = field(default_factory=dict)
    requests: dict[Digest, ChatRequest] = field(default_factory=dict)

    def find(self, job_id: JobId) -> RecordedAnswer | None:
        return self.recorded.get(job_id)

    def request(self, digest: Digest) -> ChatRequest | None:
        return self.requests.get(digest)


class Conversation:
    """A client, and the service that it talks to."""

    def __init__(self, **request: Any) -> None:
        self.answers = Answers()
        self.renderer = PlainRenderer()
        self.prompts = self.restarted()
        self.options = request
        self.messages: tuple[Message, ...] = ()
        self.turns: list[tuple[ChatRequest, tuple[int, ...], tuple[int, ...]]] = []

    def restarted(self, fingerprint: str = FINGERPRINT) -> IncrementalPrompts:
        return IncrementalPrompts(self.renderer, self.answers, fingerprint)

    def ask(self, text: str, *, role: str = "user") -> ChatRequest:
        self.messages += (Message(role=role, content=text),)  # type: ignore[arg-type]  # a role
        return ChatRequest(
            model="m",
            messages=self.messages,
            max_tokens=9,
            sampling=SamplingWish(seed=len(self.turns)),
            **self.options,
        )

    def answer(
        self,
        request: ChatRequest,
        text: str,
        arguments: str | None = None,
        encoding: PromptEncoding = _NEWEST,
    ) -> None:
        """Record an answer to a request, and return the turn as the client echoes it."""
        job = JobId(f"job-{len(self.turns):032x}")
        prompt = self.prompts.render(request, encoding).tokens
        # No tokenizer would cut the text like this.
        sampled = tuple(1000 + ord(letter) for letter in text + (arguments or ""))
        calls: tuple[EmittedCall, ...] = ()
        echoed: tuple[ToolCall, ...] = ()
        if arguments is not None:
            calls = (EmittedCall(id=f"c{job}", name="Bash", arguments=arguments, is_complete=True),)
            swapped = dict(reversed(json.loads(arguments).items()))
            echoed = (ToolCall(id=f"c{job}", name="Bash", arguments=swapped | {"more": False}),)
        # As the log has it: the request by its bytes.
        payload = request.to_bytes()
        self.answers.requests[digest_of(payload)] = ChatRequest.from_bytes(payload)
        self.answers.recorded[job] = RecordedAnswer(
            job_id=job,
            request=digest_of(payload),
            fingerprint=FINGERPRINT,
            answer=StoredAnswer(text=text, calls=calls, token_ids=sampled),
            encoding=encoding,
        )
        self.turns.append((request, prompt, sampled))
        self.messages += (
            Message(role="assistant", content=text.strip(), tool_calls=echoed, origin=job),
        )


_SAYINGS = st.lists(
    st.tuples(
        st.text("ab ", max_size=4),
        st.none()
        | st.dictionaries(st.text("xyz", min_size=1, max_size=2), st.integers(0, 9), max_size=3),
        st.sampled_from(["user", "tool"]),
    ),
    min_size=2,
    max_size=8,
)


def _talk(sayings: list[tuple[str, dict[str, int] | None, str]], **options: Any) -> Conversation:
    talk = Conversation(**options)
    for text, arguments, role in sayings:
        request = talk.ask(f"about {text}", role=role)
        talk.answer(request, text, None if arguments is None else json.dumps(arguments))
    return talk


@given(sayings=_SAYINGS)
def test_a_prompt_begins_with_the_one_before_it_and_what_was_sampled(
    sayings: list[tuple[str, dict[str, int] | None, str]],
) -> None:
    turns = _talk(sayings, tools=(_TOOL,)).turns
    for (_, prompt, sampled), (_, following, _) in pairwise(turns):
        assert following[: len(prompt) + len(sampled)] == prompt + sampled


def test_a_prompt_keeps_the_message_starts_of_the_one_before_it() -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user"), ("c", None, "user")])
    start = len(_ids(talk.messages[:1]))
    for request, _, _ in talk.turns:
        assert talk.prompts.render(request).message_starts == (start,)
        assert talk.restarted().render(request).message_starts == (start,)


def test_the_last_message_begins_behind_the_sampled_answer() -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user"), ("c", None, "user")])
    for (_, prompt, sampled), (request, _, _) in pairwise(talk.turns):
        expected = len(prompt) + len(sampled) + 1
        assert talk.prompts.render(request).last_message == expected
        assert talk.restarted().render(request).last_message == expected


@given(sayings=_SAYINGS)
def test_after_a_restart_every_prompt_is_the_same(
    sayings: list[tuple[str, dict[str, int] | None, str]],
) -> None:
    talk = _talk(sayings)
    for request, prompt, _ in talk.turns:
        assert talk.restarted().render(request).tokens == prompt
    crowded = IncrementalPrompts(talk.renderer, talk.answers, FINGERPRINT, bytes_max=1)
    assert crowded.render(talk.turns[-1][0]).tokens == talk.turns[-1][1]


@given(sayings=_SAYINGS, data=st.data())
def test_what_was_edited_is_rendered_whole(
    sayings: list[tuple[str, dict[str, int] | None, str]], data: st.DataObject
) -> None:
    talk = _talk(sayings)
    request, _, _ = talk.turns[-1]
    places = [n for n, turn in enumerate(request.messages[:-1]) if turn.role == "assistant"]
    edited = data.draw(st.sampled_from(places))
    messages = list(request.messages)
    messages[edited] = replace(messages[edited], content=messages[edited].content + "!")
    changed = replace(request, messages=tuple(messages))
    tokens = talk.prompts.render(changed).tokens
    earlier = [turn for turn in talk.turns if len(turn[0].messages) < edited]
    known = earlier[-1][1] + earlier[-1][2] if earlier else ()
    assert tokens[: len(known)] == known
    rest = changed.messages[edited:]
    assert tokens[-len(_ids(rest) + _ids(())) :] == _ids(rest) + _ids(())


def test_turns_answered_before_an_update_keep_their_encoding() -> None:
    talk = Conversation()
    for text, encoding in (
        ("a", PromptEncoding.MARKS_READ),
        ("b", PromptEncoding.MARKS_READ),
        ("c", _NEWEST),
        ("d", _NEWEST),
    ):
        talk.answer(talk.ask(text), text, encoding=encoding)
    for (_, prompt, sampled), (_, following, _) in pairwise(talk.turns):
        assert following[: len(prompt) + len(sampled)] == prompt + sampled
    for (request, prompt, _), answer in zip(
        talk.turns, talk.answers.recorded.values(), strict=True
    ):
        assert talk.restarted().render(request, answer.encoding).tokens == prompt
    old = talk.turns[0][0]
    assert talk.prompts.render(old, PromptEncoding.MARKS_READ) != talk.prompts.render(old, _NEWEST)


def test_another_model_s_tokens_are_not_used() -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user")])
    request = talk.turns[-1][0]
    assert talk.restarted("model-2").render(request) == talk.renderer.render(request)


def test_an_answer_to_another_question_is_not_used() -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user")])
    request = talk.turns[-1][0]
    other = (Message(role="user", content="something else"), *request.messages[1:])
    for changed in (replace(request, messages=other), replace(request, tools=(_TOOL,))):
        assert talk.prompts.render(changed) == talk.renderer.render(changed)


def test_another_effort_begins_another_prompt() -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user")])
    changed = replace(talk.turns[-1][0], effort="high")
    assert talk.prompts.render(changed) == talk.renderer.render(changed)


def test_a_remark_to_one_question_is_not_kept_for_the_next() -> None:
    talk = _talk([("a", None, "user")], tool_choice=ToolChoice(mode="none"))
    following = talk.ask("b")
    assert talk.prompts.render(following) == talk.renderer.render(following)


@pytest.mark.parametrize("lost", ["recorded", "requests"])
def test_what_was_erased_is_rendered_whole(lost: str) -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user")])
    getattr(talk.answers, lost).clear()
    request = talk.turns[-1][0]
    assert talk.restarted().render(request) == talk.renderer.render(request)


def test_a_template_that_cannot_be_split_renders_the_whole_request() -> None:
    talk = _talk([("a", None, "user"), ("b", None, "user")])
    talk.renderer.cuts = False
    request = talk.turns[-1][0]
    assert talk.restarted().render(request) == talk.renderer.render(request)


def test_a_cached_conversation_is_not_rendered_again() -> None:
    talk = _talk([("a", None, "user")] * 5)
    before = talk.renderer.rendered
    talk.prompts.render(talk.ask("and then"))
    assert talk.renderer.rendered == before


def test_conversation_that_opens_with_an_answer_to_a_raw_prompt_is_rendered_whole() -> None:
    talk = Conversation()
    raw = ChatRequest(
        model="m",
        messages=(),
        raw=RawPrompt(text="Once"),
        max_tokens=9,
        sampling=SamplingWish(),
    )
    talk.answer(raw, "upon a time")
    request = talk.ask("Go on.")
    assert talk.prompts.render(request) == talk.renderer.render(request)
