"""Start the parts of a service in order, watch them, stop them in reverse order."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from ops.broker.address import answers, forget_url, read_url
from ops.broker.private_redis import find_server
from ops.clients.claude_code import ServedModel
from ops.clients.http_client import HttpClient
from ops.exit_codes import ExitCode
from ops.observe.logs import Logger
from ops.settings.api_keys import SUPERVISOR_KEY, ApiKey, digest_of_key, read_keys
from ops.settings.settings import Settings
from ops.supervisor.child import Child, StandbySlot
from ops.supervisor.output import PartOutput
from ops.supervisor.parts import (
    API,
    BROKER,
    LARGE_ARRAYS,
    MANY_THREADS,
    STANDBY,
    WORKER,
    Part,
    Parts,
    allocator_environment,
    child_environment,
    read_user_models,
    with_keys,
)
from ops.supervisor.power import PowerAssertion, awake_command
from ops.supervisor.probes import (
    PROBE_S,
    has_running_jobs,
    served_model,
    why_not_ready,
)
from ops.supervisor.process_monitor import GiveUp, ProcessMonitor
from ops.supervisor.serve_record import (
    PartRecord,
    ServeRecord,
    StartTimedOut,
    end_parts,
    write_record,
)
from ops.supervisor.startup_banner import StartupBanner

#: Time for a broker to answer after its start, in seconds.
BROKER_START_MAX_S = 30.0
#: Time for the whole service to become ready, in seconds; includes the download of a model.
START_MAX_S = 6 * 3600.0
#: Interval between two lines about a model that is still loading, in seconds.
LOADING_NOTE_S = 5.0
_POLL_S = 0.05
#: Pause between two probes of a service that starts, as a share of its age, and the longest one.
_POLL_SHARE = 0.02
_POLL_MAX_S = 1.0
_ALLOCATION: Final = MappingProxyType({WORKER: LARGE_ARRAYS, API: MANY_THREADS})
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Runs the parts until a signal, or until one of them cannot be kept alive.

    Args:
        settings: The effective settings, with the real port.
        record: The first record for ``semantic status``; its parts are those of a killed service.
        prepare: Opens the event log, which needs its library; called in a thread.
        extra_environment: Further variables for every part.
    """

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        *,
        record: ServeRecord,
        prepare: Callable[[], object],
        banner: StartupBanner,
        logger: Logger,
        output: PartOutput,
        extra_environment: Mapping[str, str],
    ) -> None:
        self._settings = settings
        #: A part that is restarted reads the file again: what it changes or drops must not come
        #: back from the settings of the start.
        self._user_models = read_user_models()
        self._parts = parts
        self._record = record
        self._prepare = prepare
        self._banner = banner
        self._logger = logger
        self._output = output
        self._extra_environment = extra_environment
        #: Parts that have lost their supervisor and still run.
        self._killed = record.parts
        self._monitors: dict[str, ProcessMonitor] = {}
        #: Parts that import while the broker starts, by name.
        self._early: dict[str, Child] = {}
        self._standby = self._standby_slot() if parts.worker.standby_argv else None
        self._broker_url = settings.redis.url
        #: Drawn by each supervisor: it may know only digests of the other keys.
        self._own_key = secrets.token_urlsafe(32)
        self._lifeline, self._write_end = os.pipe()
        self._exit_code: ExitCode | None = None
        self._ended = asyncio.Event()
        self._hurry = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> ExitCode:
        """Serve until the end and return the exit code."""
        loop = asyncio.get_running_loop()
        caught = _caught_signals()
        for number in caught:
            loop.add_signal_handler(number, partial(self._on_signal, number))
        starting = asyncio.create_task(self._start(), name="start")
        starting.add_done_callback(self._on_started)
        try:
            await self._ended.wait()
        finally:
            starting.cancel()
            await self._drain()
            for number in caught:
                loop.remove_signal_handler(number)
        if self._exit_code is None:
            await starting  # raises the reason of the failed start
        return self._exit_code or ExitCode.OK

    def _finish(self, code: ExitCode) -> None:
        """Begin the shutdown; the first reason counts."""
        if not self._ended.is_set():
            self._exit_code = code
            self._output.writer.release()
            self._ended.set()

    def _on_signal(self, number: int) -> None:
        if not self._ended.is_set():
            self._finish(ExitCode.OK)
            self._banner.stopping()
        elif number == signal.SIGINT:
            self._hurry.set()

    def _on_started(self, starting: asyncio.Task[None]) -> None:
        if not starting.cancelled() and starting.exception() is not None:
            self._ended.set()

    async def _start(self) -> None:
        began = time.monotonic()
        if self._killed:
            await self._take_over()
        broker = self._keep(self._parts.broker) if self._parts.broker is not None else None
        for part in (self._parts.worker, self._parts.api):
            if part.name not in self._early:
                self._start_early(part)
            self._note_part(self._early[part.name], restarts=0)
        await asyncio.to_thread(self._prepare)
        if broker is not None:
            self._broker_url = await self._wait_broker()
        self._note(broker_url=self._broker_url)
        server = find_server()
        self._banner.broker(
            self._broker_url or "",
            broker.pid if broker else None,
            server.name if server else "",
        )
        worker, api = self._keep(self._parts.worker), self._keep(self._parts.api)
        self._banner.parts(worker.pid, self._record.base_url, api.pid)
        model = await self._wait_ready(began)
        if command := awake_command():
            self._keep_awake(command)
        self._note(ready=True, model=model.id)
        # Not before: its imports take a processor from the load.
        self._await_standby(self._environment_of(self._parts.worker))
        self._banner.ready(
            self._record.base_url,
            model,
            time.monotonic() - began,
            keyed=bool(self._settings.server.api_keys),
        )
        self._output.writer.release()

    async def _take_over(self) -> None:
        """Import beside the parts of a killed service, which serve meanwhile, and end them then."""
        self._banner.taking_over()
        for part in self._parts.last_to_first():
            self._start_early(part)
        for child in tuple(self._early.values()):
            await child.imported()
        await asyncio.to_thread(self._end_killed)
        self._note(parts={})

    def _end_killed(self) -> None:
        """End the parts of a killed service, its broker last."""
        killed = self._killed
        others = [part for name, part in killed.items() if name != BROKER]
        for parts in (others, list(killed.values())):
            end_parts(parts, self._parts.worker.grace_s)
        self._killed = {}

    def _keep_awake(self, command: Sequence[str]) -> None:
        """Prevent sleep while jobs run."""
        runs_jobs = partial(asyncio.to_thread, has_running_jobs, self._client())
        power = PowerAssertion(command, runs_jobs=runs_jobs, logger=self._logger)
        task = asyncio.create_task(power.follow(), name="keep awake")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _wait_broker(self) -> str:
        deadline = time.monotonic() + BROKER_START_MAX_S
        while time.monotonic() < deadline:
            url = read_url(self._settings)
            if url != "" and await asyncio.to_thread(answers, url):
                return url
            await asyncio.sleep(_POLL_S)
        raise StartTimedOut(f"the broker did not answer within {BROKER_START_MAX_S:.0f} s")

    async def _wait_ready(self, began: float) -> ServedModel:
        noted = began
        client = self._client()
        while (why := await asyncio.to_thread(why_not_ready, client)) is not None:
            now = time.monotonic()
            if now - began > START_MAX_S:
                raise StartTimedOut(f"the service was not ready within {START_MAX_S / 3600:.0f} h")
            if now - noted >= LOADING_NOTE_S:
                noted = now
                self._banner.not_ready_yet(why, now - began)
            # Each probe takes some milliseconds of computing from the load that it waits for.
            await asyncio.sleep(min(max(_POLL_S, (now - began) * _POLL_SHARE), _POLL_MAX_S))
        model = await asyncio.to_thread(served_model, client)
        return model or ServedModel(self._settings.model.id, None)

    def _client(self) -> HttpClient:
        headers = {"authorization": f"Bearer {self._own_key}"}
        return HttpClient(base_url=self._record.base_url, headers=headers, answer_s=PROBE_S)

    def _keep(self, part: Part) -> Child:
        monitor = ProcessMonitor(
            part,
            launch=self._launch,
            on_start=lambda child: self._on_start(child),
            on_give_up=self._on_give_up,
            logger=self._logger,
        )
        self._monitors[part.name] = monitor
        return monitor.start()

    def _standby_slot(self) -> StandbySlot:
        return StandbySlot(
            self._parts.worker,
            launch=partial(self._start_child, waits_as=self._parts.worker.standby_argv),
            on_change=self._note_standby,
            logger=self._logger,
        )

    def _launch(self, part: Part) -> Child:
        environment = self._environment_of(part)
        if part.name == BROKER:
            forget_url(self._settings)
        early = self._early.pop(part.name, None)
        if early is not None and early.activate(environment):
            child = early
        elif part.name == WORKER and self._standby is not None:
            child = self._standby.take(environment) or self._start_child(part, environment)
        else:
            child = self._start_child(part, environment)
        if part.name == WORKER and self._record.ready:
            self._await_standby(environment)
        return child

    def _await_standby(self, environment: Mapping[str, str]) -> None:
        if self._standby is not None:
            self._standby.refill(environment)

    def _start_early(self, part: Part) -> None:
        """Start a part that imports and then waits until it is launched."""
        environment = self._environment_of(part)
        self._early[part.name] = self._start_child(part, environment, waits_as=part.argv)

    def _environment_of(self, part: Part) -> Mapping[str, str]:
        extra = dict(self._extra_environment)
        if part.name != BROKER and self._broker_url is not None:
            extra["SEMANTIC_REDIS__URL"] = self._broker_url
        if (wanted := _ALLOCATION.get(part.name)) is not None:
            extra |= allocator_environment(wanted, os.environ)
        return child_environment(os.environ, self._settings_of(part), extra, self._user_models)

    def _start_child(
        self, part: Part, environment: Mapping[str, str], *, waits_as: tuple[str, ...] = ()
    ) -> Child:
        return Child.start(
            part,
            environment=environment,
            lifeline=self._lifeline,
            put=partial(self._output.put, part.name),
            waits_as=waits_as,
        )

    def _note_standby(self, child: Child | None) -> None:
        parts = {name: part for name, part in self._record.parts.items() if name != STANDBY}
        if child is not None:
            parts[STANDBY] = PartRecord.of(child.pid, restarts=0)
        self._note(parts=parts)

    def _settings_of(self, part: Part) -> Settings:
        """Return the settings of a part; only the api gets keys, also the supervisor's own."""
        given = read_keys(key.get_secret_value() for key in self._settings.server.api_keys)
        if part.name != API or not given:
            return with_keys(self._settings, ())
        ours = ApiKey(SUPERVISOR_KEY, digest_of_key(self._own_key))
        return with_keys(self._settings, (*given, ours))

    def _on_start(self, child: Child) -> None:
        monitor = self._monitors[child.part.name]
        self._note_part(child, restarts=monitor.restarts)
        if child.part.name == BROKER and monitor.restarts:
            task = asyncio.create_task(self._follow_broker(), name="follow broker")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _note_part(self, child: Child, *, restarts: int) -> None:
        part = PartRecord.of(child.pid, restarts=restarts)
        self._note(parts=self._record.parts | {child.part.name: part})

    async def _follow_broker(self) -> None:
        """Restart the parts that use the old address of a broker that moved."""
        with suppress(StartTimedOut):  # the monitor of the broker handles one that ends instead
            url = await self._wait_broker()
            if url == self._broker_url:
                return
            self._broker_url = url
            self._note(broker_url=url)
            self._logger.warning("the broker has a new address, restarting its users", url=url)
            for part in (self._parts.worker, self._parts.api):
                if (monitor := self._monitors.get(part.name)) and monitor.child:
                    monitor.child.terminate()

    def _on_give_up(self, part: Part, decision: GiveUp) -> None:
        self._logger.error("stopping the service", because_of=part.name, reason=decision.reason)
        self._finish(decision.exit_code)

    def _note(self, **changes: object) -> None:
        self._record = replace(self._record, **changes)  # type: ignore[arg-type] # names of fields
        try:
            write_record(self._settings.data_dir, self._record)
        except OSError as error:  # a full disk must not prevent the restart of a part
            self._logger.warning("serve.json is out of date", why=str(error))

    async def _drain(self) -> None:
        """Stop the parts in turn, the api first."""
        for task in self._tasks:
            task.cancel()
        if self._killed:
            await asyncio.to_thread(self._end_killed)
        for part in self._parts.last_to_first():
            if (monitor := self._monitors.get(part.name)) is not None:
                await monitor.stop(self._hurry)
        for child in self._early.values():
            child.discard()
        if self._standby is not None:  # afterwards: until now the worker may have been restarted
            self._standby.close()
        os.close(self._write_end)
        os.close(self._lifeline)


def _caught_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop this service; a SIGHUP that nohup ignores stays ignored."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return tuple(number for number in _STOP_SIGNALS if number != signal.SIGHUP)
    return _STOP_SIGNALS
