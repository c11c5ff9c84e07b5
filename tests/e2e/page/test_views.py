"""The first three views of the page with a real browser and live jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.clients.browser import Browser, open_browser
from tests.support.polling import scaled
from tests.support.processes.scripted_service import ENDLESS, ENDLESS_PACE_S, line, scripted_service
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly

HOSTILE = "<img src=x onerror=alert(1)>"
RUNNING = "section[aria-label=Running]"
FINISHED = "section[aria-label=Finished]"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = scripted_service(
        tmp_path_factory.mktemp("page"),
        [
            line("Go on", ENDLESS, pace_s=ENDLESS_PACE_S),
            line("quick", f"A short answer {HOSTILE}."),
        ],
        SEMANTIC_MODEL__NAME="semantic-demo",
        SEMANTIC_ENGINE__MAX_BATCH_SIZE="2",
    ).start()
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="module")
def browser(scripted: Service) -> Iterator[Browser]:
    with open_browser(scripted.base_url) as one:
        yield one


@pytest.fixture
def jobs(scripted: Service, browser: Browser) -> Iterator[Jobs]:
    """Jobs of one test; at the end, they are cancelled and the console must be empty."""
    own = Jobs(scripted)
    yield own
    for job_id in own.ids:
        own.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    own.http.close()
    assert browser.messages() == []


class Jobs:
    """Submits jobs to a service and reads them."""

    def __init__(self, service: Service) -> None:
        self.http = httpx.Client(base_url=service.base_url, timeout=scaled(60))
        self.ids: list[str] = []

    def submit(self, prompt: str, **more: Any) -> str:
        body = {"prompt": prompt, "max_tokens": 4000} | more
        job_id: str = self.http.post("/v1/jobs", json=body).raise_for_status().json()["id"]
        self.ids.append(job_id)
        return job_id

    def status(self, job_id: str) -> str:
        status: str = self.http.get(f"/v1/jobs/{job_id}").json()["status"]
        return status


def row(browser: Browser, section: str, job_id: str) -> str:
    """Return the text of the row of a job in a section, empty if there is none."""
    rows = browser.find(f"{section} .list-space [role=row]")
    return next((one.text for one in rows if job_id[-6:] in one.text), "")


def test_the_first_view_shows_jobs_in_each_state_and_four_charts(
    browser: Browser, jobs: Jobs
) -> None:
    running = [jobs.submit(f"Go on {n}.", agent_id=f"agent-{n}") for n in range(2)]
    browser.open()
    browser.wait(lambda: all(row(browser, RUNNING, job_id) for job_id in running), "both jobs")
    waiting = jobs.submit("Go on after them.", agent_id="agent-last")
    browser.wait(lambda: row(browser, "section[aria-label=Waiting]", waiting), "a waiting job")
    assert "agent-last" in row(browser, "section[aria-label=Waiting]", waiting)
    assert len(browser.find(".chart canvas")) == 4
    assert "Memory" in browser.text(".top")
    assert "semantic-demo" in browser.text(".top-name")
    browser.click(".segmented label", "24 h")
    browser.wait(lambda: "range=24h" in browser.driver.current_url, "the range in the address")
    for job_id in (*running, waiting):
        jobs.http.post(f"/v1/jobs/{job_id}/cancel").raise_for_status()
    browser.wait(lambda: "cancelled" in row(browser, FINISHED, waiting), "a finished job")


def test_a_job_is_cancelled_by_two_presses_and_by_no_single_one(
    browser: Browser, jobs: Jobs
) -> None:
    job_id = jobs.submit("Go on.")
    browser.open()
    browser.wait(lambda: row(browser, RUNNING, job_id), "the job")
    browser.click(f"{RUNNING} button[aria-label$='{job_id}']")
    browser.click(f"{RUNNING} button[aria-label='Stop it? job {job_id}']")
    browser.wait(lambda: "cancelled" in row(browser, FINISHED, job_id), "the end of the job")
    assert jobs.status(job_id) == "cancelled"


def test_texts_are_hidden_until_the_reader_asks_and_are_never_markup(
    browser: Browser, jobs: Jobs
) -> None:
    live, ended = jobs.submit("Go on."), jobs.submit("quick")
    later = jobs.submit("quick", after=[ended, live])
    browser.wait(lambda: jobs.status(ended) == "completed", "the end of the job")
    browser.open(f"jobs/{ended}")
    browser.see("completed", ".steps")
    browser.wait(lambda: len(browser.find(".events details")) == 3, "its events")
    assert HOSTILE not in browser.text()
    assert f"semantic replay {ended} --verify" in browser.text(".copy-line")
    browser.click(".job-text label")
    browser.see(HOSTILE, ".texts")
    assert browser.find(".texts img") == []
    browser.see("Followed by", ".facts")
    browser.click(f".facts a[title={later}]")
    browser.see("After", ".facts")
    browser.click(f".facts a[title={live}]")
    browser.see("10 11 12 13", ".texts")
    browser.click(".job-text label")
    browser.wait(lambda: browser.find(".texts") == [], "no text")


def test_a_running_job_shows_its_tokens_so_far(browser: Browser, jobs: Jobs) -> None:
    job_id = jobs.submit("Go on.")
    browser.open(f"jobs/{job_id}")
    browser.wait(
        lambda: re.search(r"Answer\s+[1-9][\d,]* tokens", browser.text(".facts")), "its tokens"
    )


def test_bars_name_the_phases_of_a_job(browser: Browser, jobs: Jobs) -> None:
    job_id = jobs.submit("quick")
    browser.wait(lambda: jobs.status(job_id) == "completed", "the end of the job")
    browser.open(f"jobs/{job_id}")
    browser.wait(lambda: browser.find(".bar-part[data-tone=decode]"), "the bars")
    kinds = [bar.get_attribute("data-tone") for bar in browser.find(".bar-part")]
    assert kinds[0] == "queued"
    assert kinds[-2:] == ["prefill", "decode"]
    ends = browser.run(
        "return [...document.querySelectorAll('.bar-part')].map((one) =>"
        " parseFloat(one.style.left) + parseFloat(one.style.width))"
    )
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(100, abs=0.5)


def test_the_keyboard_moves_the_row_and_opens_the_job(browser: Browser, jobs: Jobs) -> None:
    older, newer = jobs.submit("quick one"), jobs.submit("quick two")
    browser.open("jobs")
    browser.see(newer[-6:], "[role=grid]")
    focus = "document.querySelector('[role=row][tabindex=\"0\"]').focus()"
    browser.run(focus)
    browser.press("ArrowDown")
    selected = "return document.activeElement.textContent"
    browser.wait(lambda: older[-6:] in browser.run(selected), "the second row")
    browser.press("Enter")
    browser.wait(lambda: older in browser.driver.current_url, "the view of the job")
    browser.press("1")
    browser.wait(lambda: browser.driver.current_url.endswith("#/"), "the first view")


def test_deaths_are_marks_on_the_bars_and_the_page_follows_a_new_api(tmp_path: Path) -> None:
    service = scripted_service(
        tmp_path,
        [line("", ENDLESS, pace_s=ENDLESS_PACE_S)],
        SEMANTIC_MODEL__NAME="semantic-demo",
    ).start()
    jobs = Jobs(service)
    try:
        job_id = jobs.submit("Go on.", agent_id="survivor")
        with open_browser(service.base_url) as browser:
            browser.open(f"jobs/{job_id}")
            browser.see("attempt 1", ".steps")
            service.kill_part("worker.main")
            browser.wait(
                lambda: browser.find(".bar-mark[data-what=lost]"), "the death of the worker"
            )
            browser.wait(lambda: len(browser.find(".lane")) == 2, "two attempts")
            assert browser.find(".bar-part[data-tone=lost]")
            browser.open()
            browser.see("live", ".connection")
            service.kill_part("api.main")
            browser.wait(lambda: browser.find(".stale"), "figures that are marked as old")
            assert "live" not in browser.text(".connection")
            browser.see("live", ".connection")
            browser.wait(lambda: row(browser, RUNNING, job_id), "the job, after the reconnect")
    finally:
        jobs.http.post(f"/v1/jobs/{job_id}/cancel")
        jobs.http.close()
        assert service.stop() == 0, service.log()
