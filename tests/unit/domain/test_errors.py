"""Facts that errors carry beside their text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from domain import errors
from domain.errors import (
    NAME_CHARS_MAX,
    NAMES_MAX,
    AgentNotFound,
    AgentTurnConflict,
    BatchNotEnded,
    BatchNotFound,
    ConcurrencyConflict,
    DiskFull,
    FileNotFound,
    IdempotencyKeyTaken,
    InvalidRequest,
    JobAlreadyTerminal,
    JobNotFound,
    MemoryFull,
    ModelChanged,
    ModelNotFound,
    ModelNotLoaded,
    NotRetryable,
    Overloaded,
    PayloadMissing,
    PreviousResponseNotFound,
    PromptTooLong,
    ResponseNotFound,
    SemanticError,
    StaleAttempt,
    SwapNotFound,
    Unknown,
    WebhookNotFound,
    WorkerNotFound,
)

#: The names that clients and recorded events have: a new name of a class must not change one.
CODES = [
    "agent_exists",
    "agent_not_found",
    "agent_turn_conflict",
    "batch_already_ended",
    "batch_not_ended",
    "batch_not_found",
    "cancelled",
    "completion_not_found",
    "concurrency_conflict",
    "conflict",
    "conversation_not_found",
    "corrupt_log",
    "device_failed",
    "disk_full",
    "draining",
    "engine_failure",
    "engine_lost",
    "failure",
    "file_not_found",
    "idempotency_key_reused",
    "idempotency_key_taken",
    "internal_error",
    "invalid_request",
    "item_not_found",
    "items_lost",
    "job_already_terminal",
    "job_not_found",
    "log_newer",
    "log_unavailable",
    "memory_full",
    "model_changed",
    "model_not_found",
    "model_not_loaded",
    "model_not_ready",
    "model_unusable",
    "not_forkable",
    "not_found",
    "not_retryable",
    "overloaded",
    "payload_damaged",
    "payload_missing",
    "predecessor_failed",
    "previous_response_not_found",
    "prompt_too_long",
    "queue_unavailable",
    "rate_limited",
    "response_not_found",
    "schedule_exists",
    "schedule_not_found",
    "stale_attempt",
    "subscription_not_found",
    "subscription_taken",
    "swap_not_found",
    "unavailable",
    "unique_job_exists",
    "webhook_not_found",
    "worker_not_found",
]


def test_codes_stay_as_clients_know_them() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    found = {one.code for one in kinds if issubclass(one, SemanticError)} - {Unknown.code}
    assert sorted(found) == CODES


def test_error_without_words_shows_its_code() -> None:
    assert SemanticError().message == "internal_error"
    assert InvalidRequest("no", field="a.b").message == "no"
    assert InvalidRequest("no", field="a.b").field == "a.b"


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (lambda: PromptTooLong(50, 9), {"tokens": 50, "maximum": 9}),
        (
            lambda: ConcurrencyConflict("s", expected=2, actual=3),
            {"stream": "s", "expected": 2, "actual": 3},
        ),
        (lambda: JobAlreadyTerminal("j", "failed"), {"status": "failed"}),
        (lambda: IdempotencyKeyTaken("job-7"), {"job_id": "job-7"}),
        (lambda: AgentTurnConflict("a", turn=4, job="job-7"), {"turn": 4, "job": "job-7"}),
        (lambda: Overloaded("full"), {"retry_after_s": 1}),
        (lambda: MemoryFull(12.4, retry_after_s=6), {"retry_after_s": 6}),
        (lambda: DiskFull("full"), {"retry_after_s": 10, "retryable": True}),
        (lambda: DiskFull("full", retry_after_s=3), {"retry_after_s": 3}),
    ],
)
def test_fact_is_an_attribute(error: Callable[[], SemanticError], facts: dict[str, object]) -> None:
    made = error()
    assert {name: getattr(made, name) for name in facts} == facts


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (lambda: ConcurrencyConflict("s", expected=2, actual=3), ["s", "version 3", "expected 2"]),
        (lambda: StaleAttempt("j-1", attempt=1, current=2), ["attempt 1", "j-1", "attempt 2"]),
        (lambda: JobAlreadyTerminal("j-1", "failed"), ["j-1", "failed"]),
        (lambda: NotRetryable("j-1", "queued"), ["j-1 is queued", "expired ones retry"]),
        (lambda: NotRetryable("j-1", "failed", why="its text is gone"), ["its text is gone"]),
        (lambda: ModelNotLoaded("night", loaded="day"), ["night", "day is", "models swap night"]),
        (lambda: ModelNotLoaded("night", loaded=None), ["night", "no model is"]),
        (lambda: IdempotencyKeyTaken("job-7"), ["job-7"]),
        (lambda: BatchNotEnded("b-1", "running"), ["b-1 is running"]),
        (lambda: MemoryFull(12.4, retry_after_s=6), ["12 s"]),
        (lambda: DiskFull("1 GB is missing"), ["1 GB is missing"]),
        (lambda: ModelChanged(), ["send the request again"]),
        (lambda: ModelChanged("it swapped"), ["it swapped"]),
        (lambda: JobNotFound("j-1"), ["j-1"]),
        (lambda: ResponseNotFound("r-1"), ["r-1"]),
        (lambda: PreviousResponseNotFound("r-1"), ["r-1"]),
        (lambda: SwapNotFound("s-1"), ["s-1"]),
        (lambda: AgentNotFound("a-1"), ["a-1"]),
        (lambda: BatchNotFound("b-1"), ["b-1"]),
        (lambda: FileNotFound("f-1"), ["f-1"]),
        (lambda: WebhookNotFound("w-1"), ["w-1"]),
        (lambda: PayloadMissing("sha256:0"), ["sha256:0"]),
        (lambda: WorkerNotFound("w-1", known=["w-2", "w-3"]), ["w-1", "w-2, w-3"]),
        (lambda: WorkerNotFound("w-1", known=[]), ["there is: none"]),
    ],
)
def test_message_names_what_it_is_about(
    error: Callable[[], SemanticError], words: list[str]
) -> None:
    message = error().message
    assert [word for word in words if word not in message] == []


def test_previous_response_is_a_field_of_the_request() -> None:
    assert PreviousResponseNotFound("r-1").field == "previous_response_id"


class TestModelNotFound:
    """An unknown model, and the names that exist."""

    @pytest.mark.parametrize(
        ("known", "more"), [(NAMES_MAX, ""), (NAMES_MAX + 1, " and 1 more"), (25, " and 5 more")]
    )
    def test_first_names_are_listed_and_the_others_counted(self, known: int, more: str) -> None:
        names = tuple(f"m{number}" for number in range(known))
        listed = ", ".join(names[:NAMES_MAX])
        message = ModelNotFound("x", known=names).message
        assert message == f"model x is not served here; there is: {listed}{more}"

    def test_without_names_it_ends_after_the_model(self) -> None:
        assert ModelNotFound("x").message == "model x is not served here"

    def test_long_name_is_cut(self) -> None:
        whole, long = "a" * NAME_CHARS_MAX, "a" * (NAME_CHARS_MAX + 1)
        assert f"model {whole} is" in ModelNotFound(whole).message
        assert f"model {whole}… is" in ModelNotFound(long).message
