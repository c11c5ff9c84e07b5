"""Agents beside the clients of ``bench.chaos``: long conversations with tools, and forks."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from bench.chaos.client import MODEL, events_of

#: Prefixes of the User-Agents of this load.
CLIENTS: Final = ("claude-cli/soak", "soak")
#: Seconds for one answer, waits for a swap included.
ANSWER_S: Final = 300.0
#: Turns of a conversation before the agent begins another one.
TURNS_MAX: Final = 8
#: Statuses while a model is being swapped or the queue is full.
_SHORTAGE: Final = {409, 429, 503, 504}
_PAUSE_S: Final = 0.5
_SYSTEM: Final = "You help with a program. Answer in a few words, and read files first. " * 60
_TOOLS: Final = [
    {
        "name": name,
        "description": f"{name} a file of the project. " * 6,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("read", "write", "search")
]
_QUESTIONS: Final = (
    "What does the main function do?",
    "Where is the file written?",
    "Why does the second test fail?",
    "Rename the variable in the loop.",
)


@dataclass(slots=True)
class Record:
    """What the threads have done; any thread may add to it.

    Attributes:
        began_s: Monotonic time of the start.
        counts: Finished operations by kind.
        first_ms: Seconds since the start and milliseconds to the first text, of agents' turns.
        swap_ms: The duration of each swap.
        faults: Replies that no shortage explains.
    """

    began_s: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    first_ms: list[tuple[float, float]] = field(default_factory=list)
    swap_ms: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Agents:
    """Threads that work until ``finish``.

    Args:
        base_url: Address of the service.
        agents: Number of agents that talk at once.
    """

    def __init__(self, base_url: str, *, agents: int) -> None:
        self.record = Record()
        self._http = httpx.Client(
            base_url=base_url, timeout=ANSWER_S, trust_env=False, headers={"user-agent": CLIENTS[1]}
        )
        self._stopped = threading.Event()
        talks = (lambda number=number: self._talk(number) for number in range(agents))
        works: list[Callable[[], None]] = [*talks, self._fork]
        self._pool = ThreadPoolExecutor(len(works), thread_name_prefix="soak")
        self._futures: list[Future[None]] = [self._pool.submit(self._repeat, one) for one in works]

    def finish(self) -> Record:
        """Start no new operation, wait for the running ones, and return what was done."""
        self._stopped.set()
        for future in self._futures:
            future.result()
        self._pool.shutdown()
        self._http.close()
        return self.record

    def follow_swap(self, swap_id: str) -> None:
        """Wait for the end of a swap, and record how long it took."""
        path = f"/admin/swaps/{swap_id}"
        while (swap := self._http.get(path).raise_for_status().json())["ended_at"] is None:
            time.sleep(_PAUSE_S)
        if swap["state"] != "done":
            self.record.faults.append(f"{swap_id} is {swap['state']}: {swap['why']}")
        self.record.swap_ms.append(float(swap["timings_ms"]["total"] or 0))

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._stopped.is_set():
            try:
                work()
            except httpx.TransportError as error:
                self.record.faults.append(repr(error))
                self._stopped.wait(_PAUSE_S)
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in _SHORTAGE:
                    self.record.faults.append(str(error))
                self.record.counts["refused"] += 1
                self._stopped.wait(_PAUSE_S)

    def _talk(self, number: int) -> None:
        """Hold one conversation: a long shared prompt, questions, tool calls and their results."""
        rng = random.Random(f"agent {number} {len(self.record.first_ms)}")
        messages: list[dict[str, Any]] = []
        for turn in range(TURNS_MAX):
            if self._stopped.is_set():
                return
            messages.append({"role": "user", "content": rng.choice(_QUESTIONS)})
            text = self._answer(messages, rng.randint(16, 64), f"{CLIENTS[0]}-{number}")
            messages += _tool_turn(f"call-{number}-{turn}", text)
            self.record.counts["turns"] += 1

    def _answer(self, messages: list[dict[str, Any]], max_tokens: int, agent: str) -> str:
        """Stream an answer, record the time to its first text, and return the text."""
        body = {"model": MODEL, "system": _SYSTEM, "tools": _TOOLS, "messages": messages}
        began, text = time.monotonic(), ""
        with self._http.stream(
            "POST",
            "/v1/messages",
            json=body | {"max_tokens": max_tokens, "stream": True},
            headers={"user-agent": agent},
        ) as response:
            if response.is_error:
                response.read()
            response.raise_for_status()
            for kind, data in events_of(response.iter_lines()):
                if kind == "content_block_delta":
                    if not text:
                        now = time.monotonic()
                        since_s = now - self.record.began_s
                        self.record.first_ms.append((since_s, 1000 * (now - began)))
                    text += str(data["delta"].get("text", "."))
        return text

    def _fork(self) -> None:
        """Create an agent, fork it after a turn, ask both, and delete them."""
        agent = self._post("/v1/agents", {"system": _SYSTEM[:1000]})["id"]
        with contextlib.ExitStack() as stack:
            stack.callback(self._http.delete, f"/v1/agents/{agent}")
            self._ask_agent(agent, "Name a colour.")
            child = self._post(f"/v1/agents/{agent}/fork", {})["id"]
            stack.callback(self._http.delete, f"/v1/agents/{child}")
            self._ask_agent(child, "Name another one.")
        self.record.counts["forks"] += 1
        self._stopped.wait(2)

    def _ask_agent(self, agent: str, prompt: str) -> None:
        self._post(f"/v1/agents/{agent}/generate", {"prompt": prompt, "max_tokens": 16})

    def _post(self, path: str, body: object) -> Any:
        return self._http.post(path, json=body).raise_for_status().json()


def _tool_turn(call: str, text: str) -> list[dict[str, Any]]:
    """Return the answer as if it had called a tool, with the result of the call."""
    used = {"type": "tool_use", "id": call, "name": "read", "input": {"path": "main.py"}}
    result = {"type": "tool_result", "tool_use_id": call, "content": "def main(): pass\n" * 8}
    spoken = [{"type": "text", "text": text}] if text.strip() else []
    return [
        {"role": "assistant", "content": [*spoken, used]},
        {"role": "user", "content": [result]},
    ]
