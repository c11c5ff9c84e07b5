"""The screen of ``semantic top``, with Textual; a thread follows the service."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from textual.app import App, ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Sparkline, Static

from ops.cli.top import text
from ops.cli.top.feed import Lost, overviews
from ops.clients.http_client import HttpClient, Refused, Unreachable
from ops.terminal_text import visible, visible_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.widget import Widget

W = TypeVar("W", bound="Widget")
#: Values of a sparkline: one for each overview, so about a minute.
SPARK_VALUES: Final = 60
_TABLES: Final = (
    ("running", text.RUNNING_HEAD, text.running_rows),
    ("waiting", text.WAITING_HEAD, text.waiting_rows),
    ("finished", text.FINISHED_HEAD, text.finished_rows),
)
_RATES: Final = (
    ("tokens_per_s", "tok/s"),
    ("prompt_tokens_per_s", "prompt tok/s"),
    ("queue_depth", "waiting"),
)


class TimelineScreen(ModalScreen[None]):
    """The timeline of one job; escape closes it.

    Args:
        job: The job.
        lines: Its timeline.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q", "dismiss", "Close")]

    def __init__(self, job: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._job = job
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        with VerticalScroll(id="timeline"):
            yield Static(visible("\n".join([self._job, "", *self._lines])), markup=False)
        yield Footer()


class TopApp(App[None]):
    """Shows the overviews of a service as they come.

    Args:
        connect: Returns a client of the service.
    """

    CSS = """
    #title, #rates, #memory, #workers, #notice { height: auto; }
    #title { text-style: bold; }
    #sparks { height: 2; }
    #sparks Sparkline { width: 1fr; height: 1; }
    #sparks Static { width: auto; padding: 0 1; }
    .name { height: 1; text-style: bold; }
    DataTable { height: 1fr; min-height: 2; }
    #timeline { padding: 1 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("c", "cancel", "Cancel job"),
        Binding("enter", "timeline", "Timeline", priority=False),
        Binding("p", "pause", "Pause/resume"),
        Binding("tab", "focus_next", "Next table", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, connect: Callable[[], HttpClient]) -> None:
        super().__init__()
        self._connect = connect
        self._ended = threading.Event()
        self._overview: text.Overview = {}
        self._jobs: dict[str, list[str]] = {name: [] for name, *_ in _TABLES}
        self._values: dict[str, deque[float]] = {
            name: deque(maxlen=SPARK_VALUES) for name, _ in _RATES
        }
        #: The job that the next ``c`` cancels.
        self._asked: str | None = None

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static("semantic · connecting", id="title", markup=False)
        for name in ("rates", "memory", "workers"):
            yield Static("", id=name, markup=False)
        with Horizontal(id="sparks"):
            for name, label in _RATES:
                yield Static(label, markup=False)
                yield Sparkline([], id=f"spark-{name}")
        for name, head, _ in _TABLES:
            yield Static(name, classes="name", id=f"{name}-name", markup=False)
            table: DataTable[str] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
            table.add_columns(*head)
            yield table
        yield Static("", id="notice", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Follow the service."""
        self._widget("#running", DataTable).focus()
        threading.Thread(target=self._follow, name="overviews", daemon=True).start()

    def on_unmount(self) -> None:
        """End the thread; it may still wait for the service."""
        self._ended.set()

    def _follow(self) -> None:
        for found in overviews(self._connect, self._ended.wait):
            if self._ended.is_set():
                return
            show = self._show_lost if isinstance(found, Lost) else self._show
            try:
                self.call_from_thread(show, found)
            except (RuntimeError, NoMatches, ScreenStackError):
                return  # the app has ended

    def _show_lost(self, lost: Lost) -> None:
        self._write("title", f"semantic · {lost.why}, trying again in {lost.again_s:.1f} s")

    def _show(self, overview: dict[str, Any]) -> None:
        self._overview = overview
        self._write("title", text.title(overview))
        self._write("rates", text.rates(overview))
        self._write("memory", text.memory(overview))
        self._write("workers", "\n".join(text.workers(overview)))
        for name, values in self._values.items():
            values.append(float((overview.get("rates") or {}).get(name) or 0))
            self._widget(f"#spark-{name}", Sparkline).data = list(values)
        for name, _, rows in _TABLES:
            jobs = [row["job"] for row in overview.get(name) or []]
            self._fill(name, jobs, rows(overview))

    def _fill(self, name: str, jobs: list[str], rows: text.Rows) -> None:
        """Show the rows, and keep the cursor on its job."""
        table: DataTable[str] = self._widget(f"#{name}", DataTable)
        under = self._under(name)
        self._write(f"{name}-name", f"{name} ({len(rows)})")
        scrolled = table.scroll_y
        table.clear()
        for row in rows:
            table.add_row(*map(visible_line, row))
        self._jobs[name] = jobs
        if under in jobs:
            table.move_cursor(row=jobs.index(under), scroll=False)
        table.scroll_to(y=scrolled, animate=False)

    def _under(self, name: str) -> str | None:
        """Return the job under the cursor of a table."""
        row, jobs = self._widget(f"#{name}", DataTable).cursor_row, self._jobs[name]
        return jobs[row] if 0 <= row < len(jobs) else None

    def _selected(self) -> str | None:
        focused = self.focused
        return self._under(focused.id or "") if isinstance(focused, DataTable) else None

    def on_data_table_row_selected(self) -> None:
        """Open the timeline: the table takes the enter key."""
        self.action_timeline()

    def action_timeline(self) -> None:
        """Open the timeline of the job under the cursor."""
        job = self._selected()
        if job is not None:
            self._ask("GET", f"/v1/jobs/{job}/timeline", lambda found: self._open(job, found))

    def _open(self, job: str, found: dict[str, Any]) -> None:
        self.push_screen(TimelineScreen(job, text.timeline(found)))

    def action_cancel(self) -> None:
        """Cancel the job under the cursor; the key has to be pressed twice."""
        job = self._selected()
        if job is None:
            return
        if self._asked != job:
            self._asked = job
            self._notice(f"press c again to cancel {text.short_id(job)}")
            return
        self._asked = None
        self._ask(
            "POST",
            f"/v1/jobs/{job}/cancel",
            lambda _: self._notice(f"{text.short_id(job)} is cancelled"),
        )

    def action_pause(self) -> None:
        """Pause the start of jobs, or resume it."""
        name = "pause" if self._overview.get("admission", "open") == "open" else "resume"
        self._ask("POST", f"/admin/{name}", lambda found: self._notice(found["admission"]))

    def _ask(self, method: str, path: str, then: Callable[[dict[str, Any]], None]) -> None:
        """Send a request on a thread and handle its answer here."""

        def send() -> None:
            try:
                found = self._connect().ask(method, path)
            except Refused as refused:
                self.call_from_thread(self._notice, str(refused))
            except (Unreachable, ValueError):
                self.call_from_thread(self._notice, "no service answers")
            else:
                self.call_from_thread(then, found)

        self.run_worker(send, thread=True, exit_on_error=False)

    def _notice(self, words: str) -> None:
        self._write("notice", text.plain(words, width=200))

    def _widget(self, selector: str, kind: type[W]) -> W:
        """Return a widget of the first screen, below an open timeline.

        Raises:
            ScreenStackError: The app has ended, and has no screen left.
        """
        stack = self.screen_stack
        if not stack:
            raise ScreenStackError
        return stack[0].query_one(selector, kind)

    def _write(self, name: str, words: str) -> None:
        self._widget(f"#{name}", Static).update(visible(words))
