"""Ten thousand jobs in the list: it draws what is in sight, and scrolls at the screen's pace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from domain.values import StreamName
from ops.clock import SystemClock
from ops.log.migrate import upgrade
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.clients.browser import Browser, open_browser
from tests.support.processes.service import Service

JOBS = 10_000
#: Rows that may be drawn at once: those in sight and the spare ones.
DRAWN_MAX = 80
#: Milliseconds of a frame at 60 a second.
FRAME_MS = 1000 / 60
#: A frame that comes later than this was dropped, and two more with it.
LATE_MS = 4 * FRAME_MS
#: Frames in which the list is scrolled, and the pixels of each: ten rows.
FRAMES, STEP_PX = 120, 280
#: Scrolls a step in each frame and returns the milliseconds between the frames.
SCROLL = """
const [count, step, done] = arguments;
const box = document.querySelector('.list');
const frames = [];
let last = performance.now();
const draw = (now) => {
  frames.push(now - last);
  last = now;
  box.scrollTop += step;
  if (frames.length < count) requestAnimationFrame(draw);
  else done(frames.slice(1));
};
requestAnimationFrame(draw);
"""


def frames_of(browser: Browser, *, step_px: int) -> tuple[list[float], float]:
    """Scroll; return the milliseconds of each frame, and the mean processor time of a frame.

    The processor time is that of the page's own thread.
    """
    before = browser.thread_ms()
    frames: list[float] = browser.driver.execute_async_script(SCROLL, FRAMES, step_px)
    return frames, (browser.thread_ms() - before) / FRAMES


def fill(directory: Path) -> None:
    """Write ended jobs into the log of a data directory."""
    directory.mkdir(mode=0o700, parents=True)
    url = f"sqlite:///{directory / 'events.sqlite3'}"
    upgrade(url)
    with open_log(url, clock=SystemClock()) as log, ThreadPoolExecutor(32) as threads:

        def append(number: int) -> None:
            log.append(
                StreamName(f"job-{number:032x}"),
                [
                    draft(submitted(agent=f"agent-{number % 7}")),
                    draft(started()),
                    draft(completed()),
                ],
                expected_version=0,
            )

        list(threads.map(append, range(JOBS)))


def jump_to_the_end(browser: Browser) -> int:
    """Scroll to the end of what was fetched and return the number of rows."""
    browser.run("const box = document.querySelector('.list'); box.scrollTop = box.scrollHeight")
    return int(browser.find("[role=grid]")[0].get_attribute("aria-rowcount") or 0) - 1


@pytest.mark.nightly
def test_ten_thousand_jobs_scroll_smoothly(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    service = Service(tmp_path / "data").start()
    try:
        with open_browser(service.base_url) as browser:
            browser.open("jobs")
            browser.wait(lambda: jump_to_the_end(browser) == JOBS, "all jobs", within_s=400)
            assert len(browser.find(".list-space > [role=row]")) <= DRAWN_MAX
            browser.run("document.querySelector('.list').scrollTop = 0")
            idle, _ = frames_of(browser, step_px=0)
            scrolled, spent_ms = frames_of(browser, step_px=STEP_PX)
            late = [sum(one > LATE_MS for one in frames) for frames in (idle, scrolled)]
            assert spent_ms < FRAME_MS, late
            # Frames are drawn by the processors here, which other tests use as well.
            assert late[1] <= late[0] + 3 * FRAMES // 4, (late, spent_ms)
            assert len(browser.find(".list-space > [role=row]")) <= DRAWN_MAX
            assert browser.messages() == []
    finally:
        assert service.stop() == 0, service.log()
