"""What owners need is never erased, and what no owner needs does not survive a sweep."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

from domain.agent.state import Profile
from domain.batch.jsonl import pack
from domain.batch.state import BATCH_PREFIX
from domain.chat.request import canonical_json
from domain.events.agent import AgentTurnAdded
from domain.events.batch import BatchDeleted, BatchEnded, BatchSubmitted, FileCreated, FileDeleted
from domain.events.event import Event
from domain.events.job import JobHidden
from domain.log.record import EventFilter
from domain.values import AgentId, JobId, StreamName, digest_of, rfc3339
from ops.clock import RandomIds
from ops.log.admin.archive import archive_log
from ops.log.admin.projections_check import ProjectionState, verify_projections
from ops.log.admin.verify import verify_payloads
from ops.log.database import reader_engine, reading
from ops.log.erase.sweep import TextSweeper
from ops.log.sql_event_log import open_log
from ops.log.tables import PAYLOADS
from ops.settings.service import RetentionSettings
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import agent_records, new_log, verify
from tests.support.day_and_night import by_day
from tests.support.fakes.time import FakeClock

#: Jobs and batches that ended longer ago lose their texts in a sweep with a rule.
AGE_S = 100.0
_TEMPLATES: dict[str, Path] = {}


@pytest.fixture(autouse=True, scope="module")
def _empty_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An empty log, so that no example has to create its tables."""
    directory = tmp_path_factory.mktemp("empty")
    new_log(directory)
    _TEMPLATES["empty"] = directory / "events.sqlite3"


@dataclass
class _Owner:
    """What the machine knows of a job, file or batch: its texts, and when it ended."""

    texts: set[str]
    ended_s: float | None = None
    agent: str | None = None
    life: int = 0
    is_deleted: bool = False
    batch: str | None = None
    source: str | None = None
    expires_s: float | None = None


@dataclass
class _Life:
    """The present life of an agent."""

    number: int
    texts: set[str] = field(default_factory=set)
    turns: list[str] = field(default_factory=list)


def _word(text: str) -> str:
    """Return the digest of a text that stands in an event and in the row of its job."""
    return digest_of(canonical_json(text))


class Retention(RuleBasedStateMachine):
    """Jobs, agents, files and batches come and go; a plain model says which texts are needed."""

    @initialize()
    def _open(self) -> None:
        self.directory = Path(tempfile.mkdtemp(dir=_TEMPLATES["empty"].parent))
        shutil.copy(_TEMPLATES["empty"], self.directory / "events.sqlite3")
        self.url = f"sqlite:///{self.directory / 'events.sqlite3'}"
        self.clock = FakeClock()
        self.log = open_log(self.url, clock=self.clock)
        self.records = agent_records(self.log)
        self.reader = reader_engine(self.url)
        self.jobs: dict[str, _Owner] = {}
        self.files: dict[str, _Owner] = {}
        self.batches: dict[str, _Owner] = {}
        self.agents: dict[str, _Life] = {}
        self.lives = 0
        self.names = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            self.reader.dispose()
            shutil.rmtree(self.directory)

    # --- what happens --------------------------------------------------------------------------

    @rule(text=strategies.integers(0, 9), agent=strategies.sampled_from([None, "a", "b"]))
    def submit(self, text: int, agent: str | None) -> None:
        self._submit(f"request {text}", agent=agent)

    @precondition(lambda self: any(job.ended_s is None for job in self.jobs.values()))
    @rule(data=strategies.data(), text=strategies.integers(0, 9))
    def end(self, data: strategies.DataObject, text: int) -> None:
        name = data.draw(
            strategies.sampled_from(
                [name for name, job in self.jobs.items() if job.ended_s is None]
            )
        )
        self._end(name, text)

    def _end(self, name: str, text: int) -> None:
        said = f"answer {text}".encode()
        stop = f"stop {text % 3}"
        event = replace(completed(), output=digest_of(said), stop_sequence=stop)
        self._append(name, started(), event, version=1, texts=[said])
        self.jobs[name].ended_s = self.clock.monotonic()
        self.jobs[name].texts |= {digest_of(said), _word(stop)}

    @precondition(lambda self: any(job.ended_s is not None for job in self.jobs.values()))
    @rule(data=strategies.data())
    def hide(self, data: strategies.DataObject) -> None:
        ended = [name for name, job in self.jobs.items() if job.ended_s is not None]
        name = data.draw(strategies.sampled_from(ended))
        self._append(name, JobHidden())
        self.jobs[name].is_deleted = True

    @rule(agent=strategies.sampled_from(["a", "b"]), text=strategies.integers(0, 2))
    def register(self, agent: str, text: int) -> None:
        if agent in self.agents:
            return
        profile = Profile(system=f"system {text}")
        self.records.register(AgentId(agent), profile, correlation_id="c")
        self.lives += 1
        self.agents[agent] = _Life(self.lives, {digest_of(profile.to_bytes())})

    @precondition(lambda self: self.agents)
    @rule(data=strategies.data(), text=strategies.integers(0, 9), is_answered=strategies.booleans())
    def add_turn(self, data: strategies.DataObject, text: int, is_answered: bool) -> None:  # noqa: FBT001 - Hypothesis passes names
        agent = data.draw(strategies.sampled_from(sorted(self.agents)))
        life = self.agents[agent]
        if life.turns and self.jobs[life.turns[-1]].ended_s is None:
            return
        name = self._submit(f"request {text}", agent=agent)
        life.turns.append(name)
        turn = AgentTurnAdded(agent=AgentId(agent), turn=len(life.turns), job=JobId(name))
        self._append(f"agent-{agent}", turn)
        if is_answered:
            self._end(name, text)

    @precondition(lambda self: self.agents)
    @rule(data=strategies.data())
    def delete_agent(self, data: strategies.DataObject) -> None:
        agent = data.draw(strategies.sampled_from(sorted(self.agents)))
        self.records.delete(AgentId(agent), correlation_id="c")
        del self.agents[agent]
        for job in self.jobs.values():
            if job.agent == agent:
                job.is_deleted = True

    @rule(text=strategies.integers(0, 3), expires=strategies.sampled_from([None, 50.0, 500.0]))
    def upload(self, text: int, expires: float | None) -> None:
        packed = pack(f"line {text}\n".encode())
        name = self._name("file-")
        at = None if expires is None else self._at(self.clock.monotonic() + expires)
        created = FileCreated(purpose="batch", bytes=1, content=packed.digest, expires_at=at)
        self._append(name, created, texts=list(packed.payloads.values()))
        expires_s = None if expires is None else self.clock.monotonic() + expires
        self.files[name] = _Owner(set(packed.payloads), expires_s=expires_s)

    @precondition(lambda self: self.files)
    @rule(data=strategies.data())
    def delete_file(self, data: strategies.DataObject) -> None:
        name = data.draw(strategies.sampled_from(sorted(self.files)))
        if not self.files[name].is_deleted:
            self._append(name, FileDeleted())
            self.files[name].is_deleted = True

    @rule(data=strategies.data(), text=strategies.integers(0, 3), lines=strategies.integers(0, 2))
    def start_batch(self, data: strategies.DataObject, text: int, lines: int) -> None:
        packed = pack(f"line {text}\n".encode())
        source = data.draw(strategies.sampled_from([None, *sorted(self.files)]))
        name = self._name(BATCH_PREFIX)
        event = BatchSubmitted(
            protocol="openai-chat",
            endpoint="/v1/chat/completions",
            content=packed.digest,
            lines=lines,
            expires_at="2030-01-01T00:00:00.000000Z",
            input_file=source,
        )
        self._append(name, event, texts=list(packed.payloads.values()))
        self.batches[name] = _Owner(set(packed.payloads), source=source)
        for line in range(lines):
            self._submit(f"request of line {line}", batch=name)

    @precondition(lambda self: any(one.ended_s is None for one in self.batches.values()))
    @rule(data=strategies.data(), has_results=strategies.booleans())
    def end_batch(self, data: strategies.DataObject, has_results: bool) -> None:  # noqa: FBT001 - Hypothesis passes names
        open_ = [name for name, one in self.batches.items() if one.ended_s is None]
        name = data.draw(strategies.sampled_from(open_))
        if has_results:
            result = self._name("file-")
            created = FileCreated(purpose="batch_output", bytes=1, batch=name, part="output")
            self._append(result, created)
            self.files[result] = _Owner(set(), batch=name)
        self._append(name, BatchEnded(succeeded=0, errored=0, canceled=0, expired=0))
        self.batches[name].ended_s = self.clock.monotonic()

    @precondition(lambda self: any(one.ended_s is not None for one in self.batches.values()))
    @rule(data=strategies.data())
    def delete_batch(self, data: strategies.DataObject) -> None:
        ended = [name for name, one in self.batches.items() if one.ended_s is not None]
        name = data.draw(strategies.sampled_from(ended))
        self._append(name, BatchDeleted())
        self.batches[name].is_deleted = True

    @rule(seconds=strategies.sampled_from([1.0, 60.0, 120.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def archive(self) -> None:
        archive_log(
            self.url, before=self._at(self.clock.monotonic()), clock=self.clock, ids=RandomIds()
        )

    # --- the sweeps ----------------------------------------------------------------------------

    @rule(has_age=strategies.sampled_from([True, True, False]))
    def sweep(self, has_age: bool) -> None:  # noqa: FBT001 - Hypothesis passes names
        if has_age:
            # Past the bound: at it, the rounding of seconds and of dates would decide.
            self.clock.advance(AGE_S + 0.5)
        stored = self._stored()
        rules = RetentionSettings(text_days=AGE_S / 86_400 if has_age else None)
        sweeper = TextSweeper(
            self.url,
            rules,
            clock=self.clock,
            ids=RandomIds(),
            erase_items=lambda _: None,
            erase_blocks=lambda _: None,
        )
        sweeper.sweep()
        sweeper.close()
        assert self._stored() == self._needed(has_age=has_age) & stored
        verify(self.url)
        verify_payloads(self.reader, archives_of=self.url)
        # Rows have copies of words: those of an erased job are what a rebuild makes of it.
        assert verify_projections(self.reader, self.url) is ProjectionState.VERIFIED

    @invariant()
    def what_is_needed_is_there(self) -> None:
        if hasattr(self, "log"):
            assert self._needed(has_age=True) <= self._stored()

    # --- the model -----------------------------------------------------------------------------

    def _needed(self, *, has_age: bool) -> set[str]:
        """Return the texts that an owner needs, written down once more in the plainest way."""
        owners: list[_Owner | _Life] = [
            *(job for name, job in self.jobs.items() if self._keeps(name, job, has_age=has_age)),
            *(file for file in self.files.values() if self._is_shown(file, has_age=has_age)),
            *(one for name, one in self.batches.items() if self._has_lines(name, has_age=has_age)),
            *self.agents.values(),
        ]
        return set().union(*(owner.texts for owner in owners))

    def _keeps(self, name: str, job: _Owner, *, has_age: bool) -> bool:
        if job.ended_s is None or any(name in life.turns for life in self.agents.values()):
            return True
        if job.is_deleted:
            return False
        if job.batch is not None:
            return self._has_lines(job.batch, has_age=has_age)
        return not (has_age and self._is_old(job))

    def _has_lines(self, name: str, *, has_age: bool) -> bool:
        batch = self.batches[name]
        if batch.ended_s is None:
            return True
        if batch.is_deleted:
            return False
        results = [file for file in self.files.values() if file.batch == name]
        if results:
            return any(self._is_shown(file, has_age=has_age) for file in results)
        if batch.source is not None and not self._is_shown(
            self.files[batch.source], has_age=has_age
        ):
            return False
        return not (has_age and self._is_old(batch))

    def _is_shown(self, file: _Owner, *, has_age: bool) -> bool:
        if file.is_deleted:
            return False
        return not has_age or file.expires_s is None or file.expires_s > self.clock.monotonic()

    def _is_old(self, owner: _Owner) -> bool:
        assert owner.ended_s is not None
        return owner.ended_s < self.clock.monotonic() - AGE_S

    # --- the log -------------------------------------------------------------------------------

    def _submit(self, text: str, *, agent: str | None = None, batch: str | None = None) -> str:
        name = self._name("job-")
        model = f"model {len(self.jobs) % 3}"
        event = replace(submitted(agent=agent, model=model), request=digest_of(text.encode()))
        cause = batch or "req-1"
        self._append(name, event, texts=[text.encode()], cause=cause)
        self.jobs[name] = _Owner({event.request, _word(model)}, agent=agent, batch=batch)
        return name

    def _append(
        self,
        stream: str,
        *events: Event,
        texts: list[bytes] | None = None,
        version: int | None = None,
        cause: str = "req-1",
    ) -> None:
        self.clock.advance(0.001)
        if version is None:
            last = self.log.select(EventFilter(stream=StreamName(stream)), limit=1000)
            version = last[-1].version if last else 0
        self.log.append(
            StreamName(stream),
            [draft(event, correlation_id=cause) for event in events],
            expected_version=version,
            payloads={digest_of(text): text for text in texts or []},
        )

    def _stored(self) -> set[str]:
        with reading(self.reader) as connection:
            return set(connection.scalars(select(PAYLOADS.c.digest)))

    def _name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def _at(self, instant_s: float) -> str:
        return rfc3339(self.clock.now() + timedelta(seconds=instant_s - self.clock.monotonic()))


TestRetention = Retention.TestCase
TestRetention.settings = settings(
    max_examples=by_day(8, night=15), stateful_step_count=25, deadline=None
)
