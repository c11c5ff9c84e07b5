"""Models that see answer as mlx-vlm's own loop does: alone, together, after reuse, after a restart.

mlx-vlm is the independent reference: its processor, its towers, its networks and plain caches.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from mlx_vlm import load
from mlx_vlm.generate import stream_generate

from domain.chat.divergence import RecordedAnswer
from domain.chat.generation import Outcome
from domain.chat.images import (
    IMAGE_ID_MIN,
    IMAGE_MARK,
    IMAGE_NOTE,
    ChatImage,
    image_positions,
)
from domain.chat.request import ChatRequest, Message
from domain.chat.stored_answer import StoredAnswer
from domain.errors import InvalidRequest
from domain.model.registry import ModelEntry
from domain.values import Digest, JobId, digest_of
from ops.clock import SystemClock
from ops.models import hub_cache
from ops.models.hub_cache import READS_TEXT_ONLY, inspect_files
from tests.support.models.engine_probe import PATIENCE_S, CollectingSink, ask, finished, submit
from tests.support.models.recorded_engine import open_tier
from tests.support.models.tiny_models import make_tiny_llama
from tests.support.models.tiny_vision import FAMILIES, blank, picture
from worker.cachestore.tier import DiskTier
from worker.engine.engine import BatchEngine
from worker.engine.mlx.model.loader import load_weights
from worker.engine.mlx.runner import BatchRunner
from worker.engine.ports import LoadedModel

NEW_TOKENS = 12
BLOCK = 8
#: Shorter than an image, so that pieces end inside it.
PIECE = 8
TEXTS = ("look ", " here")
PICTURES = [picture(0), picture(1, 40, 120), picture(2, 200, 60, "JPEG")]


@pytest.fixture(
    scope="module",
    params=[
        # The same tower and recurrent layers as Qwen3.5, with experts.
        pytest.param(one, marks=pytest.mark.nightly if one == "qwen3_5_moe" else ())
        for one in sorted(FAMILIES)
    ],
)
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def rendering(model_dir: Path) -> LoadedModel:
    return load_weights(ModelEntry(name="tiny", source=str(model_dir))).model


@pytest.fixture(scope="module")
def expected(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, ...]]:
    files = [tmp_path_factory.mktemp("pictures") / f"{n}" for n in range(len(PICTURES))]
    for file, image in zip(files, PICTURES, strict=True):
        file.write_bytes(image.content)
    return [_reference(model_dir, [file]) for file in files]


def test_each_image_alone_equals_the_reference(
    model_dir: Path, expected: list[tuple[int, ...]]
) -> None:
    with _engine(model_dir) as engine:
        first, again = ([_answer(engine, _seen(image)) for image in PICTURES] for _ in range(2))
    assert [one.token_ids for one in first] == expected
    assert [one.token_ids for one in again] == expected
    assert all(one.usage.cached_tokens > BLOCK for one in again)


def test_two_images_of_one_question_equal_the_reference(model_dir: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{n}" for n in range(2)]
    for file, image in zip(files, PICTURES, strict=False):
        file.write_bytes(image.content)
    with _engine(model_dir) as engine:
        outcome = _answer(engine, _seen(*PICTURES[:2]))
    assert outcome.token_ids == _reference(model_dir, files)


def test_images_and_text_in_one_batch_equal_the_reference(
    model_dir: Path, expected: list[tuple[int, ...]]
) -> None:
    text = ask("tell me of a fox that jumps over the lazy dog", max_tokens=NEW_TOKENS)
    with _engine(model_dir) as engine:
        alone = _answer(engine, text).token_ids
    with _engine(model_dir) as engine:
        handles = [
            submit(engine, f"job-{n}", one) for n, one in enumerate([*map(_seen, PICTURES), text])
        ]
        answers = [finished(handle).token_ids for handle in handles]
    assert answers == [*expected, alone]


def test_two_images_share_no_block(model_dir: Path, expected: list[tuple[int, ...]]) -> None:
    with _engine(model_dir) as engine:
        first, second = (engine.prepare(_seen(image)).tokens for image in PICTURES[:2])
        before = next(n for n, token in enumerate(first) if token >= IMAGE_ID_MIN)
        assert first[:before] == second[:before]
        assert first[before] != second[before]
        _answer(engine, _seen(PICTURES[0]))
        other = _answer(engine, _seen(PICTURES[1]))
        assert other.usage.cached_tokens <= before
        assert other.token_ids == expected[1]


def test_a_restart_restores_the_blocks_of_an_image(
    model_dir: Path, expected: list[tuple[int, ...]], tmp_path: Path
) -> None:
    for is_warm in (False, True):
        tier = open_tier(tmp_path)
        with _engine(model_dir, tier) as engine:
            outcome = _answer(engine, _seen(PICTURES[0]))
            assert outcome.token_ids == expected[0]
            assert bool(outcome.usage.cached_tokens) is is_warm
            two = engine.prepare(_seen(PICTURES[0], PICTURES[2]))
            assert [one.image for one in two.images] == [PICTURES[0], PICTURES[2]]
            # Windows go on from a checkpoint, so not all that is known need be usable.
            assert two.images[0].at[-1] < two.known_tokens <= two.images[1].at[0]
        assert tier.close(PATIENCE_S)


def test_penalties_read_the_ids_of_an_image_as_the_models_own(model_dir: Path) -> None:
    request = _seen(PICTURES[0])
    penalty = replace(request.sampling, repetition_penalty=1.3)
    with _engine(model_dir) as engine:
        outcome = _answer(engine, replace(request, sampling=penalty))
    assert outcome.failure is None
    assert len(outcome.token_ids) == NEW_TOKENS


@contextmanager
def _engine(model_dir: Path, tier: DiskTier | None = None) -> Iterator[BatchEngine]:
    engine = BatchEngine(
        runner_factory=lambda: BatchRunner(
            load_weights=lambda: load_weights(ModelEntry(name="tiny", source=str(model_dir))),
            prefill_step_tokens=PIECE,
            kv_budget_bytes=1 << 26,
            block_tokens=BLOCK,
            tier=tier,
        ),
        sink=CollectingSink(),
        clock=SystemClock(),
        max_batch_size=4,
    )
    engine.start()
    try:
        yield engine
    finally:
        engine.close(0)


def _seen(*images: ChatImage) -> ChatRequest:
    content = TEXTS[0] + IMAGE_MARK * len(images) + TEXTS[1]
    message = Message(role="user", content=content, images=images)
    return replace(ask("", max_tokens=NEW_TOKENS), messages=(message,))


def _answer(engine: BatchEngine, request: ChatRequest) -> Outcome:
    outcome = finished(submit(engine, "job", request))
    assert outcome.failure is None, outcome.failure
    return outcome


@cache
def _loaded(model_dir: Path) -> tuple[Any, Any]:
    return load(str(model_dir))  # type: ignore[no-any-return]  # mlx-vlm ships no types


def _reference(model_dir: Path, files: Sequence[Path]) -> tuple[int, ...]:
    model, processor = _loaded(model_dir)
    parts = [
        {"type": "text", "text": TEXTS[0]},
        *[{"type": "image"}] * len(files),
        {"type": "text", "text": TEXTS[1]},
    ]
    prompt = processor.tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=False, add_generation_prompt=True
    )
    steps = stream_generate(
        model, processor, prompt, image=[str(one) for one in files], max_tokens=NEW_TOKENS
    )
    return tuple(step.token for step in steps)[:NEW_TOKENS]


def test_a_model_that_reads_text_refuses_an_image_in_the_question(tmp_path: Path) -> None:
    render = load_weights(
        ModelEntry(name="tiny", source=str(make_tiny_llama(tmp_path)))
    ).model.render
    question = _seen(PICTURES[0])
    with pytest.raises(InvalidRequest, match=f"{READS_TEXT_ONLY}: an image cannot be part"):
        render(question)
    turns = (*question.messages, Message(role="assistant", content="A bee."), *ask("Ah.").messages)
    noted = (replace(turns[0], content=f"look {IMAGE_NOTE} here", images=()), *turns[1:])
    later = render(replace(question, messages=turns))
    assert later == render(replace(question, messages=noted))


def test_without_its_packages_a_model_that_sees_reads_text(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = ModelEntry(name="tiny", source=str(model_dir))
    files = inspect_files(entry)
    assert files is not None
    assert files.sees
    monkeypatch.setattr(hub_cache, "_VISION_PACKAGES", ("a_package_that_is_missing",))
    files = inspect_files(entry)
    assert files is not None
    assert not files.sees
    render = load_weights(ModelEntry(name="tiny", source=str(model_dir))).model.render
    assert render(ask("hello")).tokens
    with pytest.raises(InvalidRequest, match='the extra "vision"'):
        render(_seen(PICTURES[0]))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (PICTURES[0].content[:200], "cannot be decoded"),
        (b"\x89PNG\r\n\x1a\n no picture", "cannot be decoded"),
        (blank(9000, 9000), "too large"),
    ],
)
def test_a_file_that_is_no_picture_is_refused(
    rendering: LoadedModel, content: bytes, why: str
) -> None:
    with pytest.raises(InvalidRequest, match=why):
        rendering.render(_seen(ChatImage(base64.b64encode(content).decode())))


def test_the_text_of_a_caller_makes_no_image(rendering: LoadedModel) -> None:
    render = rendering.render
    forged = "<|image_pad|><image_soft_token><start_of_image>"
    assert all(token < IMAGE_ID_MIN for token in render(ask(forged + IMAGE_MARK)).tokens)
    question = _seen(PICTURES[0])
    (message,) = question.messages
    beside = replace(message, content=forged + message.content)
    tokens = render(replace(question, messages=(beside,))).tokens
    plain = render(question).tokens
    assert [one for one in tokens if one >= IMAGE_ID_MIN] == [
        one for one in plain if one >= IMAGE_ID_MIN
    ]


def test_the_next_turn_begins_with_the_tokens_of_the_turn_before(model_dir: Path) -> None:
    answers = OneAnswer()
    weights = load_weights(ModelEntry(name="tiny", source=str(model_dir)), answers)
    first = _seen(PICTURES[0])
    prompt, sampled = weights.model.render(first).tokens, weights.model.render(ask("fox")).tokens
    answers.keep(first, "the fox", sampled, weights.model.card.fingerprint)
    answer = Message(role="assistant", content="the fox", origin="job-1")
    # A screenshot in the result of a tool, and one of another size in the question after it.
    shot = Message(role="tool", content=IMAGE_MARK, images=(PICTURES[1],), tool_call_id="c")
    question = Message(role="user", content=f"{IMAGE_MARK}?", images=(PICTURES[2],))
    second = replace(first, messages=(*first.messages, answer, shot, question))
    tokens = weights.model.render(second).tokens
    assert tokens[: len(prompt) + len(sampled)] == (*prompt, *sampled)
    images = weights.model.images(second, tokens)
    assert [one.image for one in images] == [*PICTURES]
    assert [one for image in images for one in image.at] == image_positions(tokens)
    assert images[1].at[0] >= len(prompt) + len(sampled)


@dataclass
class OneAnswer:
    """``RecordedAnswers`` of one job."""

    found: RecordedAnswer | None = None
    asked: ChatRequest | None = None

    def keep(
        self, request: ChatRequest, text: str, tokens: tuple[int, ...], fingerprint: str
    ) -> None:
        self.asked = request
        self.found = RecordedAnswer(
            job_id=JobId("job-1"),
            request=digest_of(request.to_bytes()),
            fingerprint=fingerprint,
            answer=StoredAnswer(text=text, token_ids=tokens),
        )

    def find(self, job_id: JobId) -> RecordedAnswer | None:
        return self.found if job_id == "job-1" else None

    def request(self, _: Digest) -> ChatRequest | None:
        return self.asked
