"""Two keys on one service: what one key wrote is in no byte that the other one gets."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.http.messages import Access
from api.http.operation import Operation
from api.operations import OPERATIONS
from tests.support.clients.webhook_receiver import Reply, receiver
from tests.support.models.tiny_embedder import make_tiny_embedder
from tests.support.polling import scaled, wait_until
from tests.support.processes.service import Service

KEYS = {"ann": "ann-" + "a" * 24, "bob": "bob-" + "b" * 24, "watch": "watch-" + "c" * 24}
#: In each text that the first key sends; longer than a block, so that its blocks can be looked up.
SECRET = "heliotrope-" + secrets.token_hex(8)
TEXT = " ".join(f"{SECRET} rule {number}." for number in range(60))
WITHIN_S = 120.0
STREAM_S = 1.0
_ENDED = {"completed", "failed", "cancelled", "expired"}
TURN = {"role": "user", "content": TEXT}
CHAT = {"model": "claude-x", "max_tokens": 4, "messages": [TURN]}
EMBEDDING = {"model": "notes", "input": [TEXT]}
REPEATED = {"idempotency-key": "the-same-for-both"}


@dataclass
class Things:
    """What the first key made: the values of the parts of paths, and more to refer to."""

    params: dict[str, list[str]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, param: str, name: str) -> None:
        self.params.setdefault(param, []).append(name)
        self.names.add(name)


def client_of(service: Service, name: str) -> httpx.Client:
    return httpx.Client(
        base_url=service.base_url, headers={"x-api-key": KEYS[name]}, timeout=scaled(WITHIN_S)
    )


def made(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code < 300, reply.text
    body: dict[str, Any] = reply.json()
    return body


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    directory = tmp_path_factory.mktemp("keys")
    notes = make_tiny_embedder(directory / "notes", context=4096)
    config = directory / "semantic.toml"
    config.write_text(f'[models.notes]\nsource = "{notes}"\n')
    service = Service(
        directory / "data",
        env={
            "SEMANTIC_CONFIG": str(config),
            "SEMANTIC_API_KEY": KEYS["watch"],
            "SEMANTIC_SERVER__API_KEYS": json.dumps([f"{k}={v}" for k, v in KEYS.items()]),
            "SEMANTIC_SERVER__KEY_SCOPES": json.dumps({"watch": "read"}),
            "SEMANTIC_WEBHOOKS__ALLOW_HOSTS": '["127.0.0.1"]',
        },
    ).start()
    yield service
    assert service.stop() == 0, service.log()


@pytest.fixture(scope="module")
def things(shared_service: Service) -> Iterator[Things]:
    with receiver(lambda _: Reply()) as there, client_of(shared_service, "ann") as http:
        yield _fill(http, there.url(f"/{SECRET}"))


def _fill(http: httpx.Client, url: str) -> Things:
    """Let the first key make one of each thing, with the secret in each text."""
    found = Things()
    job = {"prompt": TEXT, "system": TEXT, "max_tokens": 4, "agent_id": "writer-ann"}
    found.add("job_id", made(http.post("/v1/jobs", json=job | {"webhook": {"url": url}}))["id"])
    for _ in range(2):  # the second one finds the first one's blocks
        found.names.add(http.post("/v1/messages", json=CHAT).headers["x-semantic-job"])
    _hold(http, found)
    answer = made(
        http.post(
            "/v1/responses", json={"model": "claude-x", "input": TEXT, "max_output_tokens": 4}
        )
    )
    found.add("response_id", answer["id"])
    profile = {"id": "guide-ann", "system": TEXT, "max_tokens": 4}
    found.add("agent_id", made(http.post("/v1/agents", json=profile))["id"])
    turn = made(http.post(f"/v1/agents/{profile['id']}/generate", json={"prompt": TEXT}))
    found.names.add(turn["id"])
    embedded = http.post("/v1/embeddings", json=EMBEDDING, headers=REPEATED)
    job_id = embedded.headers["x-semantic-job"]
    found.add("job_id", job_id)
    (vector,) = made(http.get(f"/v1/jobs/{job_id}"))["output"]["embeddings"]
    found.names.add(vector)
    nightly = {"name": "nightly", "cron": "0 0 1 1 *", "job": {"prompt": TEXT}}
    found.add("schedule_id", made(http.post("/v1/schedules", json=nightly))["id"])
    batch = {"requests": [{"custom_id": SECRET, "params": CHAT}]}
    found.add("batch_id", made(http.post("/v1/messages/batches", json=batch))["id"])
    line: dict[str, Any] = {"custom_id": SECRET, "method": "POST", "url": "/v1/chat/completions"}
    model = http.get("/v1/models").json()["data"][0]["id"]
    line |= {"body": {"model": model, "max_tokens": 4, "messages": [TURN]}}
    file = {"file": (f"{SECRET}.jsonl", json.dumps(line).encode())}
    uploaded = made(http.post("/v1/files", data={"purpose": "batch"}, files=file))
    found.add("file_id", uploaded["id"])
    wanted = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    lines = made(http.post("/v1/batches", json=wanted | {"input_file_id": uploaded["id"]}))
    found.add("batch_id", lines["id"])
    done = wait_until(
        lambda: http.get(f"/v1/batches/{lines['id']}").json(),
        lambda batch: batch["status"] == "completed",
        within_s=WITHIN_S,
    )
    wait_until(
        lambda: {one["status"] for one in http.get("/v1/jobs").json()["data"]},
        lambda states: states <= _ENDED,
        within_s=WITHIN_S,
    )
    hook = wait_until(lambda: http.get("/v1/webhooks").json()["data"], within_s=WITHIN_S)[0]
    found.add("webhook_id", hook["id"])
    found.add("file_id", done["output_file_id"])
    return found


def _hold(http: httpx.Client, found: Things) -> None:
    """Let the first key make what the service holds for later requests."""
    events = {"name": "events-ann", "after": 0}
    found.add("subscription", made(http.post("/v1/subscriptions", json=events))["name"])
    thread = CHAT | {"thread": {"type": "create"}}
    found.add("message_id", made(http.post("/v1/messages", json=thread))["id"])
    chat = CHAT | {"session_id": "shared-session", "store": True}
    completion = http.post("/v1/chat/completions", json=chat)
    found.names.add(completion.headers["x-semantic-job"])
    found.add("completion_id", made(completion)["id"])
    talk = {"items": [{"role": "user", "content": TEXT}], "metadata": {"topic": SECRET}}
    conversation = made(http.post("/v1/conversations", json=talk))["id"]
    found.add("conversation_id", conversation)
    (item,) = made(http.get(f"/v1/conversations/{conversation}/items"))["data"]
    found.add("item_id", item["id"])


def bodies(operation: Operation, things: Things) -> Iterator[dict[str, Any]]:
    """Yield arguments of requests, the references to the things of the first key among them."""
    if operation.body is None:
        yield {}
        return
    if operation.id == "createFile":
        yield {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", b"{}")}}
        return
    example = dict(operation.example or {})
    yield {"json": example}
    agent, (file, *_) = "writer-ann", things.params["file_id"]
    (conversation,), (message,) = things.params["conversation_id"], things.params["message_id"]
    references: Mapping[str, list[dict[str, Any]]] = {
        "createBatch": [{"input_file_id": file}],
        "createJob": [{"agent_id": agent, "prompt": "Say hello."}],
        "cancelJobs": [{"filter": {"agent_id": agent}, "dry_run": True}],
        "retryJobs": [{"filter": {"agent_id": agent}, "dry_run": True}],
        "createChatCompletion": [{"session_id": "shared-session"}],
        "createResponse": [
            {"previous_response_id": things.params["response_id"][0]},
            {"conversation": conversation},
        ],
        "compactResponse": [{"previous_response_id": things.params["response_id"][0]}],
        "createAgent": [{"id": things.params["agent_id"][0]}],
        "createMessage": [{"thread": {"type": "continue", "previous_message_id": message}}],
    }
    for reference in references.get(operation.id, ()):
        yield {"json": example | reference}


def paths(operation: Operation, things: Things) -> Iterator[tuple[str, bool]]:
    """Yield the path with each thing of the first key, and whether it names one."""
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if not names:
        yield operation.path, False
        return
    free = {"model_id": "claude-x", "name": "no-such-model", "swap_id": "swap-" + "0" * 32}
    for name in names:
        assert (name in free) != (name in things.params), (
            f"{operation.id} names a new kind of thing"
        )
    for values in product(*(things.params.get(name, [free.get(name, "")]) for name in names)):
        path = operation.path
        for name, value in zip(names, values, strict=True):
            path = path.replace(f"{{{name}}}", value)
        yield path, any(name in things.params for name in names)


def read(http: httpx.Client, operation: Operation, path: str, **sent: Any) -> tuple[int, bytes]:
    """Return status, and head and body; of a stream, what comes within a second of silence."""
    found = bytearray()
    stream = {"accept": "text/event-stream"} if operation.is_streamed else {}
    limits = httpx.Timeout(WITHIN_S, read=STREAM_S if stream and not sent else WITHIN_S)
    with http.stream(operation.method, path, headers=stream, timeout=limits, **sent) as reply:
        found += str(reply.headers.raw).encode()
        try:
            for piece in reply.iter_bytes():
                found += piece
        except httpx.ReadTimeout:
            assert stream, path
        return reply.status_code, bytes(found)


def test_no_route_returns_what_another_key_wrote(shared_service: Service, things: Things) -> None:
    driven = set()
    with client_of(shared_service, "bob") as http:
        document = http.get("/openapi.json").json()
        for operation in OPERATIONS:
            for path, is_foreign in paths(operation, things):
                for sent in bodies(operation, things):
                    status, shown = read(http, operation, path, **sent)
                    sent_text = json.dumps(sent, default=str) + path
                    leaked = [name for name in things.names if name.encode() in shown]
                    assert all(name in sent_text for name in leaked), (operation.id, leaked)
                    assert SECRET.encode() not in shown, (operation.id, sent, shown[:2000])
                    if is_foreign:
                        assert status == 404, (operation.id, path, status, shown)
                    elif operation.needs in {Access.READ_ALL, Access.OPERATE}:
                        assert status == 403, (operation.id, status)
                    assert status < 500, (operation.id, shown)
            driven.add((operation.path, operation.method.lower()))
    documented = {(path, m) for path, methods in document["paths"].items() for m in methods}
    assert driven == documented


def test_a_key_of_its_own_things_sees_no_path_of_the_machine(
    shared_service: Service, things: Things
) -> None:
    places = [shared_service.data_dir.parent, Path(__file__).parents[3], Path.home()]
    with client_of(shared_service, "bob") as bob, client_of(shared_service, "watch") as watch:
        assert str(places[0]) in watch.get("/admin/models").text, "the test looks for no path"
        for operation in OPERATIONS:
            if operation.method != "GET":
                continue
            for path, _ in paths(operation, things):
                _, shown = read(bob, operation, path)
                named = [str(place) for place in places if str(place).encode() in shown]
                assert not named, (operation.id, named)


def test_a_foreign_thing_is_missing_like_one_that_never_was(
    shared_service: Service, things: Things
) -> None:
    def shown(http: httpx.Client, path: str, name: str) -> tuple[int, str]:
        reply = http.get(path)
        text = reply.text.replace(name, "NAME").replace(reply.headers["request-id"], "REQUEST")
        return reply.status_code, text

    with client_of(shared_service, "bob") as http:
        for operation in OPERATIONS:
            for path, is_foreign in paths(operation, things):
                if not is_foreign or operation.method != "GET":
                    continue
                name = next(one for one in path.split("/") if one in things.names)
                other = name[:-8] + ("0" * 8 if name[-8:] != "0" * 8 else "1" * 8)
                assert shown(http, path, name) == shown(http, path.replace(name, other), other)


def test_cached_tokens_tell_nothing_about_the_prompts_of_another_key(
    shared_service: Service, things: Things
) -> None:
    with client_of(shared_service, "bob") as http:
        first, second = (http.post("/v1/messages", json=CHAT) for _ in range(2))
        assert first.json()["usage"].get("cache_read_input_tokens", 0) == 0
        assert second.json()["usage"]["cache_read_input_tokens"] > 0
        assert SECRET not in second.headers["x-semantic-cache"]
    del things


def test_a_repeated_idempotency_key_of_another_key_computes_its_own_vectors(
    shared_service: Service, things: Things
) -> None:
    replies = {}
    for name in ("ann", "bob"):
        with client_of(shared_service, name) as http:
            replies[name] = http.post("/v1/embeddings", json=EMBEDDING, headers=REPEATED)
            assert replies[name].status_code == 200, replies[name].text
    assert replies["ann"].headers["x-semantic-attached"] == "idempotency_key"
    assert "x-semantic-attached" not in replies["bob"].headers
    assert replies["ann"].headers["x-semantic-job"] in things.names
    assert replies["bob"].headers["x-semantic-job"] not in things.names


def test_a_key_that_reads_changes_nothing_and_sees_everything(
    shared_service: Service, things: Things
) -> None:
    with client_of(shared_service, "watch") as http:
        for operation in OPERATIONS:
            if operation.needs in {Access.READ, Access.READ_ALL}:
                continue
            for path, _ in paths(operation, things):
                reply = http.request(operation.method, path, json=operation.example)
                assert reply.status_code == 403, (operation.id, reply.text)
                assert "has the scope read, which does not allow this" in reply.text
        job = things.params["job_id"][0]
        assert http.get(f"/v1/jobs/{job}").json()["id"] == job
        assert job in http.get("/v1/events?limit=1000").text
        assert http.get("/metrics").status_code == 200


def test_a_key_sees_all_that_is_its_own(shared_service: Service, things: Things) -> None:
    with client_of(shared_service, "ann") as http:
        for operation in OPERATIONS:
            if operation.method != "GET" or operation.needs is not Access.READ:
                continue
            for path, is_own in paths(operation, things):
                if is_own and "/batches/" not in path:
                    status, _ = read(http, operation, path)
                    assert status in {200, 204}, (operation.id, path)
        listed = http.get("/v1/events?limit=1000").text
        assert all(name in listed for name in things.params["job_id"])
