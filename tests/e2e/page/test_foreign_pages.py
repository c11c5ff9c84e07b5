"""Pages of other sites in a real browser: DNS rebinding, forged requests, streams and sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.support.clients.browser import Browser, open_browser
from tests.support.clients.npm import missing
from tests.support.polling import WITHIN_S, scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly

SITE = "attacker.test"
ADDRESS = "127.0.0.2"
_PAGE = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n"
    b"<!doctype html><title>harmless</title><p>a page"
)
#: Sends what a page can send to a base address, and returns what it learns of each reply.
_ATTACK = """
const [base, done] = arguments;
const job = JSON.stringify({prompt: "owned", max_tokens: 1});
const learn = async (name, path, options) => {
  try {
    const reply = await fetch(base + path, {cache: "no-store", ...options});
    return [name, reply.status, await reply.text()];
  } catch (error) {
    return [name, 0, String(error)];
  }
};
const opened = (name, thing) => new Promise((resolve) => {
  thing.onopen = () => resolve([name, 200, "open"]);
  thing.onerror = () => resolve([name, 0, "refused"]);
});
const framed = () => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts allow-forms";
  frame.srcdoc = `<body onload="document.forms[0].submit()">
    <form method=post enctype=text/plain action="${base}/v1/jobs">
    <input name='${job.slice(0, -1)},"metadata":{"a":"' value='"}}'></form>`;
  let loads = 0;
  frame.onload = () => ++loads === 2 && resolve(["form", 0, ""]);
  document.body.append(frame);
});
const late = (at) => new Promise((resolve) => setTimeout(resolve, 30000, [`late ${at}`, -1, ""]));
const json = {"content-type": "application/json"};
Promise.all([
  learn("read", "/v1/models"),
  learn("key", "/v1/models", {headers: {"x-api-key": "guess-guess-guess-guess"}}),
  learn("text", "/v1/jobs", {method: "POST", body: job}),
  learn("blind", "/v1/jobs", {method: "POST", body: job, mode: "no-cors"}),
  learn("json", "/v1/jobs", {method: "POST", body: job, headers: json}),
  learn("delete", "/v1/agents/victim", {method: "DELETE"}),
  opened("events", new EventSource(base + "/v1/events?follow=true")),
  opened("socket", new WebSocket(base.replace("http", "ws") + "/v1/events")),
  framed(),
].map((one, at) => Promise.race([one, late(at)]))).then(done);
"""


class Rebound:
    """The attacker's address: it serves a page, and later what the service replies.

    A name that is rebound leads a browser from the one to the other; the bytes are the same here.

    Args:
        port: Of the service, since the origin of the page has a port too.
    """

    def __init__(self, port: int) -> None:
        self.is_rebound = False
        self._port = port
        self._listener = socket.create_server((ADDRESS, port))

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            first = client.recv(1 << 16)  # browsers connect before they have a request
            if not self.is_rebound:
                client.sendall(_PAGE)
                return
            with socket.create_connection(("127.0.0.1", self._port)) as there:
                there.sendall(first)
                back = threading.Thread(target=_copy, args=(there, client), daemon=True)
                back.start()
                _copy(client, there)
                back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def _site(port: int) -> Iterator[Rebound]:
    try:
        site = Rebound(port)
    except OSError as error:
        missing(f"{ADDRESS} is no address of this machine: {error}")
    threading.Thread(target=site.serve, daemon=True).start()
    try:
        yield site
    finally:
        site.close()


@pytest.fixture
def browser(service: Service) -> Iterator[Browser]:
    rules = f"MAP {SITE} {ADDRESS}, MAP localhost. 127.0.0.1"
    with open_browser(service.base_url, resolver=rules) as opened:
        opened.driver.set_script_timeout(scaled(120))
        yield opened


def _attack(browser: Browser, base: str) -> dict[str, tuple[int, str]]:
    found = browser.driver.execute_async_script(_ATTACK, base)
    return {name: (status, text) for name, status, text in found}


def _jobs(service: Service) -> list[str]:
    return [
        one["id"]
        for one in httpx.get(f"{service.base_url}/v1/jobs", timeout=scaled(60)).json()["data"]
    ]


def test_a_rebound_name_and_other_sites_reach_nothing(browser: Browser, service: Service) -> None:
    httpx.post(
        f"{service.base_url}/v1/agents", json={"id": "victim", "system": "x"}, timeout=scaled(60)
    )
    before = _jobs(service)
    with _site(service.port) as site:
        page = f"http://{SITE}:{service.port}"
        browser.driver.get(f"{page}/")
        site.is_rebound = True
        found = _attack(browser, page)
        # The page's own origin now: it reads each reply, and each is the same refusal.
        for name in ("read", "key", "text", "blind", "json", "delete"):
            status, text = found[name]
            assert status == 403, name
            assert "host_not_allowed" in text or SITE in text, name
        assert (found["events"][0], found["socket"][0]) == (0, 0)

        # Across origins, by each name of this machine: nothing is read and nothing is done.
        for name in ("127.0.0.1", "localhost", "localhost.", "0.0.0.0"):
            found = _attack(browser, f"http://{name}:{service.port}")
            assert {status for status, _ in found.values()} == {0}, (name, found)
            assert not any("data" in text for _, text in found.values()), (name, found)
    assert _jobs(service) == before
    assert httpx.get(f"{service.base_url}/v1/agents/victim", timeout=scaled(60)).status_code == 200
    # The same requests do what they say where no page sends them.
    submitted = httpx.post(
        f"{service.base_url}/v1/jobs",
        content=b'{"prompt":"hi","max_tokens":1}',
        timeout=scaled(WITHIN_S),
    )
    assert submitted.status_code == 202
