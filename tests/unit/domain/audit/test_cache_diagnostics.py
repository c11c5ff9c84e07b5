"""The missed tokens of a job, compared with the context that it could have continued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from api.dialects.generate import cache_header
from api.dialects.jobs.objects import cache_object
from domain.audit.recent_ends import CacheDiagnosis, diagnose_cache
from domain.chat.divergence import Cause
from domain.chat.generation import PreparedPrompt
from domain.chat.request import ChatRequest
from domain.values import AgentId, JobId, Owner
from tests.support.builders.job_world import JobWorld

_LONG = "The quick brown fox jumps over the lazy dog, and over everything else. "
_OTHER = "An entirely different text, which shares no beginning with the first one."


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({}) as world:
        yield world


def answered(world: JobWorld, prompt: str, agent: str | None = None) -> JobId:
    named = {"agent": AgentId(agent)} if agent else {}
    job_id = world.accept(prompt, command=named).job_id
    world.run(job_id)
    return job_id


def story_of(world: JobWorld, job_id: JobId) -> CacheDiagnosis:
    story = diagnose_cache(job_id, views=world.log.views, log=world.log, payloads=world.log)
    assert story is not None
    return story


def test_a_prompt_of_another_client_with_nothing_in_common_is_not_compared(world: JobWorld) -> None:
    answered(world, _OTHER)
    story = story_of(world, answered(world, _LONG))
    assert (story.missed_tokens, story.compared_with, story.divergence) == (0, None, None)


def test_an_agent_sees_what_it_changed_from_the_first_message_on(world: JobWorld) -> None:
    before = answered(world, _OTHER, "ann")
    story = story_of(world, answered(world, _LONG, "ann"))
    assert story.compared_with == before
    assert story.divergence is not None
    assert story.divergence.place == "messages[0] user"


def test_blocks_that_are_gone_are_reported_without_an_agent_too(world: JobWorld) -> None:
    before = answered(world, _LONG)
    story = story_of(world, answered(world, _LONG))
    assert story.compared_with == before
    assert story.divergence is not None
    assert story.divergence.cause is Cause.BLOCKS_GONE


def test_a_job_without_an_attempt_has_no_diagnosis(world: JobWorld) -> None:
    job_id = world.submit(_LONG)
    assert diagnose_cache(job_id, views=world.log.views, log=world.log, payloads=world.log) is None


def test_the_header_names_the_checkpoint_before_the_place_where_a_prompt_parts() -> None:
    whole = CacheDiagnosis(prompt_tokens=900, cached_tokens=800, source="ram", known_tokens=800)
    assert cache_header(whole) == "prompt=900, cached=800, source=ram"
    parts = replace(whole, cached_tokens=512)
    assert cache_header(parts) == "prompt=900, cached=512, source=ram, known=800, checkpoint=512"
    assert cache_object(parts)["known_tokens"] == 800


def test_tokens_after_the_last_checkpoint_are_known(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = world.engine.prepare

    def prepare_parting(
        request: ChatRequest, *, cache_owner: Owner | None = None, **claimed: Any
    ) -> PreparedPrompt:
        return replace(prepare(request, cache_owner=cache_owner, **claimed), known_tokens=9)

    monkeypatch.setattr(world.engine, "prepare", prepare_parting)
    story = story_of(world, answered(world, _LONG))
    assert (story.cached_tokens, story.known_tokens) == (0, 9)
