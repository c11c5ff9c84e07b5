"""Texts of the log that are damaged or gone."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.audit.recorded_answers import LoggedAnswers
from domain.errors import CorruptLog, PayloadDamaged
from domain.events.event import Event
from domain.events.worker import WorkerDraining
from domain.log.codec import TEXT_FIELDS
from domain.values import AgentId, Digest, JobId, StreamName, WorkerId, digest_of
from ops.clock import RandomIds, SystemClock
from ops.log.admin.backup import verify_copy
from ops.log.admin.verify import VerifiedPayloads, verify_payloads
from ops.log.database import reader_engine
from ops.log.erase.erase import erase_agent
from ops.log.erase.text_map import PAYLOAD_FIELDS
from ops.log.reader import LogReader
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import TEXTS, completed, draft, started, submitted
from tests.support.builders.log_files import new_log, raw_connection, verify

_REQUEST = digest_of(b"request")
#: The name of the model, as its payload has it.
MODEL = b'"m"'
#: Digests that name no stored text.
_NOT_STORED = {("JobSubmitted", name) for name in ("idempotency", "asked", "unique")}


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = new_log(tmp_path)
    with open_log(url, clock=SystemClock()) as log:
        log.append(
            StreamName("w"), [draft(WorkerDraining(worker=WorkerId("w")))], expected_version=0
        )
        log.append(
            StreamName("job-1"),
            [draft(submitted(agent="a")), draft(started()), draft(completed())],
            expected_version=0,
            payloads=TEXTS,
        )
    return url


def verified(url: str) -> VerifiedPayloads:
    engine = reader_engine(url)
    try:
        return verify_payloads(engine)
    finally:
        engine.dispose()


def change(url: str, statement: str, *values: object) -> None:
    connection = raw_connection(url)
    connection.execute(statement, values).fetchall()
    connection.close()


def test_texts_verify(url: str) -> None:
    found = verified(url)
    assert (found.payloads, found.erased) == (len(TEXTS) + 1, 0)
    assert found.size_bytes == sum(map(len, TEXTS.values())) + len(MODEL)


def test_texts_of_a_running_service_verify(url: str) -> None:
    text = b"another request"
    event = replace(submitted(), request=digest_of(text))
    engine = reader_engine(url)
    with open_log(url, clock=SystemClock()) as log:

        def append(_: int, __: int) -> None:
            if not log.load(StreamName("job-2")):
                log.append(
                    StreamName("job-2"),
                    [draft(event)],
                    expected_version=0,
                    payloads={digest_of(text): text},
                )

        assert verify_payloads(engine, progress=append).payloads == len(TEXTS) + 1
    engine.dispose()


def _rewrite(url: str) -> None:
    change(url, "UPDATE payloads SET content = ? WHERE digest = ?", b"Request", _REQUEST)


def _remove(url: str) -> None:
    change(url, "DELETE FROM payloads WHERE digest = ?", _REQUEST)


@pytest.mark.parametrize(
    ("tamper", "fault"), [(_rewrite, "not as it was written"), (_remove, "missing")]
)
def test_the_first_event_whose_text_is_wrong_is_named(
    url: str, tamper: Callable[[str], None], fault: str
) -> None:
    tamper(url)
    assert verify(url).position == 4, "the chain covers digests only"
    with pytest.raises(CorruptLog, match=fault) as caught:
        verified(url)
    assert caught.value.position == 2
    assert _REQUEST in caught.value.message
    path = Path(url.removeprefix("sqlite:///"))
    with pytest.raises(CorruptLog, match=fault):
        verify_copy(path)


def test_a_text_that_no_event_names_is_verified_too(url: str) -> None:
    stray = digest_of(b"stray")
    change(
        url,
        "INSERT INTO payloads (digest, content, bytes) VALUES (?, ?, 1)",
        stray,
        b"x",
    )
    with pytest.raises(PayloadDamaged, match=stray):
        verified(url)


def test_a_damaged_text_is_not_returned(url: str) -> None:
    _rewrite(url)
    engine = reader_engine(url)
    try:
        with pytest.raises(PayloadDamaged, match=_REQUEST):
            LogReader(engine).get(_REQUEST)
        assert LogReader(engine).get(digest_of(b"output")) == b"output"
    finally:
        engine.dispose()


def test_an_answer_that_is_damaged_is_not_continued(url: str) -> None:
    change(url, "UPDATE payloads SET content = ? WHERE digest = ?", b"{}", digest_of(b"output"))
    _rewrite(url)
    engine = reader_engine(url)
    try:
        log = LogReader(engine)
        answers = LoggedAnswers(log=log, payloads=log)
        assert answers.find(JobId("job-1")) is None
        assert answers.request(_REQUEST) is None
    finally:
        engine.dispose()


def test_texts_of_a_forgotten_agent_may_be_missing(url: str) -> None:
    erase_agent(url, AgentId("a"), clock=SystemClock(), ids=RandomIds())
    found = verified(url)
    assert (found.payloads, found.erased) == (0, len(TEXTS) + 1)


def test_a_text_that_was_stored_after_its_agent_was_forgotten_is_missed(url: str) -> None:
    erase_agent(url, AgentId("a"), clock=SystemClock(), ids=RandomIds())
    with open_log(url, clock=SystemClock()) as log:
        log.append(
            StreamName("job-2"),
            [draft(submitted(agent="a"))],
            expected_version=0,
            payloads={_REQUEST: b"request"},
        )
    _remove(url)
    with pytest.raises(CorruptLog) as caught:
        verified(url)
    assert caught.value.message.endswith(f"{_REQUEST} is missing")


def test_every_digest_in_an_event_is_known_to_name_a_text_or_not() -> None:
    fields = {
        (cls.__name__, name)
        for cls in typing.get_args(Event)
        for name, hint in typing.get_type_hints(cls).items()
        if _is_digest(hint)
    }
    texts = {(cls, name) for cls, names in TEXT_FIELDS.items() for name in names}
    known = {(cls, name) for cls, names in PAYLOAD_FIELDS.items() for name in names}
    assert texts <= known
    assert fields == (known - texts) | _NOT_STORED


def _is_digest(hint: Any) -> bool:
    return hint is Digest or Digest in typing.get_args(hint)
