"""Against the whole service: an agent keeps its history, and what was read is not read again."""

from __future__ import annotations

from typing import Any

import httpx

from tests.support.polling import scaled
from tests.support.processes.service import Service

SYSTEM = "You are a helpful assistant who knows a good deal about the weather of Europe. " * 4
WAIT = {"prefer": "wait=60"}


class Client:
    """Talks to agents and waits for their answers."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def ask(self, method: str, path: str, body: Any = None, *, status: int) -> Any:
        url = self.service.base_url + path
        reply = httpx.request(method, url, json=body, headers=WAIT, timeout=scaled(120))
        assert reply.status_code == status, reply.text
        return reply.json()

    def turn(self, agent: str, prompt: str, **more: Any) -> Any:
        body = {"prompt": prompt} | more
        job = self.ask("POST", f"/v1/agents/{agent}/generate", body, status=200)
        assert job["status"] == "completed", job
        return job

    def command(self, *words: str) -> str:
        done = self.service.semantic("agents", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout


def _goes_on(before: Any, after: Any) -> None:
    """All that was read and said before is known; the last token was never read."""
    read, said = before["usage"]["prompt_tokens"], before["usage"]["completion_tokens"]
    assert after["usage"]["cached_tokens"] >= read + said - 2, (before["usage"], after["usage"])


def test_turns_and_forks_read_only_what_is_new_also_after_a_restart(mortal: Service) -> None:
    client = Client(mortal)
    made = {"id": "guide", "system": SYSTEM, "max_tokens": 12, "temperature": 0}
    client.ask("POST", "/v1/agents", made, status=201)
    first = client.turn("guide", "Say hello.", expected_turn=0)
    second = client.turn("guide", "What is the capital of France?", expected_turn=1)
    _goes_on(first, second)
    told = client.ask(
        "POST",
        "/v1/agents/guide/generate",
        {"prompt": "Say hello.", "expected_turn": 1},
        status=409,
    )
    assert (told["turn"], told["job"]) == (2, None)
    client.ask("POST", "/v1/agents/guide/fork", {"from_turn": 1, "id": "twin"}, status=201)
    _goes_on(first, client.turn("twin", "What is the capital of Italy?"))
    assert "goes on from turn 2" in client.command("fork", "guide", "--id", "third")

    assert client.service.stop() == 0
    client.service.start()
    shown = client.ask("GET", "/v1/agents/guide", status=200)
    assert (shown["turns"], shown["system"]) == (2, SYSTEM)
    _goes_on(second, client.turn("guide", "Say goodbye.", expected_turn=2))
    _goes_on(second, client.turn("third", "Say it again.", expected_turn=2))
    cache = client.ask("GET", "/v1/agents/guide/cache", status=200)
    assert cache["latest"]["cached_tokens"] >= second["usage"]["prompt_tokens"]
    assert "is deleted" in client.command("rm", "guide", "--yes")
    client.ask("GET", "/v1/agents/guide", status=404)
    client.turn("third", "And again.", expected_turn=3)


def test_two_agents_of_one_name_are_answered_as_if_they_had_two(service: Service) -> None:
    client = Client(service)

    def talk(names: tuple[str, str]) -> list[str]:
        openings = ("What is the capital of France?", "What is the capital of Italy?")
        told: dict[str, list[Any]] = {
            opening: [{"role": "user", "content": opening}] for opening in openings
        }
        answers: list[str] = []
        for follow_up in (None, "Say hello."):
            for name, opening in zip(names, openings, strict=True):
                if follow_up is not None:
                    told[opening].append({"role": "user", "content": follow_up})
                body = {"messages": told[opening], "agent_id": name, "max_tokens": 12}
                job = client.ask("POST", "/v1/jobs", body | {"temperature": 0}, status=200)
                answers.append(job["output"]["text"])
                told[opening].append({"role": "assistant", "content": answers[-1]})
        return answers

    assert talk(("one-name", "one-name")) == talk(("a-name", "another-name"))
