"""Runs use cases one port call at a time, in an order that the caller decides.

Each use case runs on a thread, and only one thread runs at a time. Before every port call the use
case waits for an order: go on, lose the reply of that call, or die. Another process can therefore
act, or a crash can happen, between any two effects, and a run depends on the orders alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

from domain.errors import QueueUnavailable, SemanticError


class ProcessDied(BaseException):
    """The process is gone; not an ``Exception``, so that no use case catches it."""


class Order(Enum):
    """An order to a task that waits before a port call."""

    GO = "go"
    LOSE_REPLY = "lose_reply"
    DIE = "die"


class Task:
    """One running use case.

    Args:
        name: Its name in the trace.
        body: The use case with all its arguments.

    Attributes:
        at: The next port call.
        done: Whether it has ended.
        refusal: The domain error that it raised, if any.
    """

    def __init__(self, name: str, body: Callable[[], object]) -> None:
        self.name = name
        self.at = "start"
        self.done = False
        self.refusal: SemanticError | None = None
        self._body = body
        self._order = Order.GO
        self._ready: Callable[[], bool] = lambda: True
        self._defect: BaseException | None = None
        self._go, self._stopped = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._stopped.acquire()
        self._thread: threading.Thread | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the task can continue."""
        return not self.done and self._ready()

    def step(self, order: Order) -> None:
        """Let it run to its next stop; a defect of it is raised here."""
        assert not self.done, "it has ended"
        self._order = order
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()
        if self.done:
            self._thread.join()
        if self._defect is not None:
            raise self._defect

    def stop(self, at: str, ready: Callable[[], bool]) -> Order:
        """Wait for an order; called on its own thread."""
        self.at, self._ready = at, ready
        self._stopped.release()
        self._go.acquire()
        return self._order

    def _run(self) -> None:
        try:
            if self._order is not Order.DIE:
                self._body()
        except ProcessDied:
            pass
        except SemanticError as error:
            self.refusal = error
        except BaseException as error:  # noqa: BLE001 - raised again where the order came from
            self._defect = error
        self.done = True
        self._stopped.release()


class Process:
    """Something that can crash: all its tasks die at once and nothing of it has an effect again.

    Attributes:
        alive: Whether it has not crashed.
        frozen: Whether it stands still without knowing.
        tasks: Use cases on their way, oldest first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.tasks: list[Task] = []
        self._current: Task | None = None

    def begin(self, name: str, body: Callable[[], object]) -> Task:
        """Add a use case; it does nothing before its first step."""
        task = Task(f"{self.name}/{name}", body)
        self.tasks.append(task)
        return task

    def step(self, task: Task, order: Order = Order.GO) -> None:
        """Let a task run to its next port call; ``DIE`` takes the whole process."""
        if order is Order.DIE:
            self.die()
            return
        self._current = task
        try:
            task.step(order)
        finally:
            self._current = None
            if task.done and task in self.tasks:
                self.tasks.remove(task)

    def die(self) -> None:
        """Crash."""
        self.alive = False
        for task in list(self.tasks):
            self._current = task
            while not task.done:
                task.step(Order.DIE)
        self._current = None
        self.tasks.clear()

    def pause(self, at: str, ready: Callable[[], bool] = lambda: True) -> Order:
        """Stop the running task, if any, until its next order.

        Raises:
            ProcessDied: The order was to die, or the process is dead.
        """
        order = Order.GO
        if self.alive and self._current is not None:
            order = self._current.stop(at, ready)
        if not self.alive:
            raise ProcessDied
        assert ready(), f"{at} went on too early"
        return order

    def stepped(self, port: Any, name: str, *, may_lose_reply: bool = False) -> Any:
        """Return ``port`` with a stop before each call.

        Args:
            port: Any port; the caller types it.
            name: Its name in the trace.
            may_lose_reply: Whether a call may have its effect and still fail, as over a network.
        """
        return _Stepped(self, port, name, may_lose_reply)


class _Stepped:
    def __init__(
        self,
        process: Process,
        port: Any,
        name: str,
        may_lose_reply: bool,  # noqa: FBT001 - private
    ) -> None:
        self._process, self._port, self._name = process, port, name
        self._may_lose_reply = may_lose_reply

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._port, method)

        def stopping(*args: Any, **options: Any) -> Any:
            order = self._process.pause(f"{self._name}.{method}")
            result = call(*args, **options)
            if order is Order.LOSE_REPLY and self._may_lose_reply:
                raise QueueUnavailable(f"the reply to {self._name}.{method} was lost")
            return result

        return stopping
