"""The state of a registered model, from its files, the log and the workers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from domain.events.model import ModelLoaded, ModelLoadFailed, ModelUnloaded
from domain.model.registry import (
    ModelEntry,
    ModelFiles,
    ModelPast,
    ModelRegistry,
    ModelState,
    take_stock,
)
from domain.values import ModelCard, WorkerId

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
WORKER = WorkerId("worker-1")
A = ModelEntry(name="a", source="/models/a", context_length=1000)
B = ModelEntry(name="b", source="org/b", aliases=("bee",))
FILES = ModelFiles(directory="/models/a", size_bytes=5, context_length=4096, written_at=NOON)
CARD = ModelCard(
    id="a", fingerprint="f", context_length=900, description="d", created_at="2026-01-01T00:00:00Z"
)
LOADED = ModelLoaded(
    worker=WORKER,
    model="a",
    fingerprint="f",
    context_length=900,
    description="d",
    created_at="2026-01-01T00:00:00Z",
    load_ms=1.0,
)
UNLOADED = ModelUnloaded(worker=WORKER, model="a")
FAILED = ModelLoadFailed(worker=WORKER, model="a", message="it does not fit")


def _past(*events: ModelLoaded | ModelLoadFailed | ModelUnloaded) -> ModelPast:
    past = ModelPast()
    for event in events:
        past = past.after(event, NOON)
    return past


@pytest.mark.parametrize(
    ("past", "files", "serves", "state"),
    [
        (_past(), FILES, False, ModelState.AVAILABLE),
        (_past(), None, False, ModelState.MISSING),
        (_past(FAILED), FILES, False, ModelState.FAILED),
        (_past(LOADED, FAILED), FILES, False, ModelState.FAILED),
        (_past(FAILED, LOADED), FILES, False, ModelState.AVAILABLE),
        (
            _past(LOADED, UNLOADED),
            FILES,
            False,
            ModelState.AVAILABLE,
        ),
        (_past(FAILED), None, False, ModelState.MISSING),
        (_past(FAILED), FILES, True, ModelState.LOADED),
        (_past(), None, True, ModelState.LOADED),
    ],
)
def test_the_state_of_a_model(
    past: ModelPast,
    files: ModelFiles | None,
    serves: bool,  # noqa: FBT001 - a row of the table
    state: ModelState,
) -> None:
    (found,) = take_stock(
        ModelRegistry([A]),
        inspect=lambda _: files,
        pasts={"a": past},
        serving=[CARD] if serves else [],
    )
    assert found.state is state
    assert found.failure == ("it does not fit" if state is ModelState.FAILED else None)


def test_a_failed_load_of_other_files_counts_no_more() -> None:
    failed = ModelPast().after(FAILED, NOON - SECOND)
    (found,) = take_stock(
        ModelRegistry([A]), inspect=lambda _: FILES, pasts={"a": failed}, serving=[]
    )
    assert found.state is ModelState.AVAILABLE


def test_loaded_models_come_first_also_those_that_only_a_worker_knows() -> None:
    other = ModelCard(
        id="z", fingerprint="z", context_length=7, description="", created_at="2026-01-01T00:00:00Z"
    )
    found = take_stock(ModelRegistry([A, B]), inspect=lambda _: None, pasts={}, serving=[other])
    assert [(model.entry.name, model.state.value) for model in found] == [
        ("z", "loaded"),
        ("a", "missing"),
        ("b", "missing"),
    ]


def test_without_a_worker_the_model_that_was_loaded_last_comes_first() -> None:
    pasts = {
        "a": ModelPast().after(LOADED, NOON),
        "b": ModelPast().after(replace(LOADED, model="b"), NOON + SECOND),
    }
    registry = ModelRegistry([ModelEntry(name="c", source="c"), A, B])
    found = take_stock(registry, inspect=lambda _: None, pasts=pasts, serving=[])
    assert [model.entry.name for model in found] == ["b", "a", "c"]


def test_size_context_and_digest_as_far_as_they_are_known() -> None:
    (loaded,) = take_stock(ModelRegistry([A]), inspect=lambda _: FILES, pasts={}, serving=[CARD])
    assert (loaded.context_length, loaded.digest) == (900, "f")
    (here,) = take_stock(
        ModelRegistry([A]), inspect=lambda _: FILES, pasts={"a": _past(LOADED)}, serving=[]
    )
    assert (here.context_length, here.digest) == (1000, "f")
    (unknown,) = take_stock(ModelRegistry([B]), inspect=lambda _: None, pasts={}, serving=[])
    assert (unknown.context_length, unknown.digest) == (None, None)


def test_failure_of_a_load_has_its_words_and_its_instant() -> None:
    past = _past(LOADED, FAILED)
    assert (past.failure, past.failed_at) == ("it does not fit", NOON)
    assert past.card is not None, "the last load that went well is still known"


def test_status_has_the_files_of_its_own_entry() -> None:
    other = replace(FILES, directory="/models/b")
    found = {A.name: FILES, B.name: other}
    stock = take_stock(
        ModelRegistry([A, B]), inspect=lambda entry: found[entry.name], pasts={}, serving=[]
    )
    assert {one.entry.name: one.files for one in stock} == found
