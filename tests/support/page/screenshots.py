"""Writes the screenshots of ``docs/page.md``: ``make screenshots``.

They show a real service whose model follows a script; figures and times differ from run to run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support.clients.browser import Browser, open_browser
from tests.support.clients.service_log import ended
from tests.support.clients.webhook_receiver import Reply, receiver
from tests.support.page.population import MANUAL, WITHIN_S, populate, wait_until_given_up
from tests.support.polling import scaled, wait_until
from tests.support.processes.scripted_service import ENDLESS, line, scripted_service
from tests.support.processes.service import Service

OUT = Path(__file__).parents[3] / "docs" / "images" / "page"
BYTES_MAX = 8 << 20
#: Points of the charts before the first picture.
CHART_S = 20
#: A desktop and a phone: width, height and pixels of the screen for one of the page.
DESKTOP, PHONE = (1280, 800, 1), (390, 780, 1)
_LONG = {"prompt": "Count as far as you can.", "max_tokens": 4000}
_ANSWER = "Three lines of five, seven and five syllables."
_POEM = "Here it is:\n```\nEach event is kept,\nline after line, in order:\nnothing is lost.\n```"
_PACE_S = 0.03
#: File, view, theme, screen, and what the view shows once its data are there.
SHOTS = (
    ("now", "", "dark", DESKTOP, ".table [data-index], .table [role=row]"),
    ("now-light", "", "light", DESKTOP, ".table [data-index], .table [role=row]"),
    ("now-phone", "", "dark", PHONE, ".table [data-index], .table [role=row]"),
    ("chat", "chat/poet", "dark", DESKTOP, ".chat:has(.cache-line) .images"),
    ("chat-phone", "chat/poet", "light", PHONE, ".chat:has(.cache-line) .images"),
    ("job", "jobs/{job}", "dark", DESKTOP, "main h2"),
    ("agents", "agents/writer", "dark", DESKTOP, ".block"),
    ("events", "events", "dark", DESKTOP, ".data-table tbody tr"),
    ("batches", "batches", "light", DESKTOP, "[role=grid] [data-index]"),
    ("webhooks", "webhooks", "light", DESKTOP, "[role=grid] [data-index]"),
    ("setup", "setup", "light", DESKTOP, ".copy-line"),
)


def main() -> None:
    """Start a service, fill it, and write a file for each view."""
    OUT.mkdir(parents=True, exist_ok=True)
    with _service() as running, open_browser(running.base_url) as browser:
        with receiver(lambda _: Reply(410)) as there:
            made = populate(running.base_url, receiver_url=there.url("/gone"))
            wait_until_given_up(running.base_url)
        _converse(running.base_url)
        for agent in ("writer", "reviewer", "session-1"):
            body = _LONG | {"agent_id": agent}
            httpx.post(
                f"{running.base_url}/v1/jobs", json=body, timeout=scaled(60)
            ).raise_for_status()
        wait_until(lambda: _measured_s(running.base_url) >= CHART_S, within_s=WITHIN_S)
        for name, view, theme, screen, shown in SHOTS:
            _take(browser, name, view.format(job=made["jobs"][1]), theme, screen, shown)
    size = sum(path.stat().st_size for path in OUT.glob("*.png"))
    assert size <= BYTES_MAX, f"{size} bytes are too many"
    print(f"{len(SHOTS)} screenshots, {size // 1000} kB")  # noqa: T201 - a command


@contextmanager
def _service() -> Iterator[Service]:
    with tempfile.TemporaryDirectory() as folder:
        # The model follows a script, so that some jobs run while the pictures are taken.
        running = scripted_service(
            Path(folder),
            [
                line("sentence", _ANSWER, pace_s=_PACE_S),
                line("Count", ENDLESS, pace_s=_PACE_S),
                line("about a log", _POEM, pace_s=_PACE_S),
            ],
            SEMANTIC_MODEL__NAME="semantic-demo",
            SEMANTIC_WEBHOOKS__ALLOW_HOSTS='["127.0.0.1"]',
        ).start()
        try:
            yield running
        finally:
            running.kill()


def _converse(base_url: str) -> None:
    """Make the conversation of the picture of the chat."""
    profile = {"id": "poet", "system": MANUAL, "thinking": True}
    with httpx.Client(base_url=base_url, timeout=scaled(WITHIN_S)) as http:
        http.post("/v1/agents", json=profile).raise_for_status()
        for question in ("What is a haiku, in a sentence?", "Write one about a log."):
            turn = http.post("/v1/agents/poet/generate", json={"prompt": question})
            ended(http, turn.raise_for_status().json()["id"])


def _measured_s(base_url: str) -> int:
    """Return for how many seconds the charts have figures of running jobs."""
    found = httpx.get(f"{base_url}/admin/history?range=5m", timeout=scaled(60)).json()
    return sum(bool(point["tokens_per_s"]) for point in found["points"])


def _take(
    browser: Browser, name: str, view: str, theme: str, screen: tuple[int, int, int], shown: str
) -> None:
    width, height, scale = screen
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False},
    )
    browser.open(view)
    browser.run(f"localStorage.setItem('semantic.theme', '{theme}')")
    browser.open(view)
    browser.wait(lambda: browser.find(shown), f"the view {view!r}")
    if not view:
        browser.see("writes")  # the worker reports its rows from the second pulse on
    browser.wait(lambda: browser.run("return document.fonts.status") == "loaded", "the fonts")
    assert browser.driver.save_screenshot(str(OUT / f"{name}.png"))


if __name__ == "__main__":
    main()
