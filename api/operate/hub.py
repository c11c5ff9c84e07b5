"""Models beyond the registered ones: what fits this machine, the hub, and downloads from it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.errors import TransportError
from api.http.messages import Access, Objects, Request, shown
from api.http.operation import Operation, path, text
from domain.errors import InvalidRequest, SemanticError
from domain.model.registry import ModelEntry
from ops.models.hub_cache import is_hub_id
from ops.models.suggest import HubSearch, Suggestions, search_hub, suggestions

#: Characters of a search.
_WORDS: Final = r"^[ -~]{1,100}$"
#: Downloads that are listed.
_DOWNLOADS_MAX: Final = 10


class DownloadObject(TypedDict):
    """A download from the hub; ``size_bytes`` is ``null`` until the hub has listed its files.

    After a failure another request continues where this one ended.
    """

    object: Literal["download"]
    model: str
    state: Literal["running", "done", "failed"]
    done_bytes: int
    size_bytes: int | None
    why: str | None


@dataclass(slots=True, eq=False)
class Download:
    """A download; its thread alone changes it, and a reader may see two figures of two moments."""

    model: str
    state: Literal["running", "done", "failed"] = "running"
    done_bytes: int = 0
    size_bytes: int | None = None
    why: str | None = None

    def run(self, entry: ModelEntry) -> None:
        """Download what is missing of a model; blocks."""
        # The client of the hub is large, and most services never download.
        from ops.models.pull import find_on_hub, pull  # noqa: PLC0415 - see above

        try:
            model = find_on_hub(entry.source, entry.revision)
            self.done_bytes, self.size_bytes = model.present_bytes, model.size_bytes
            pull(model, self._add)
        except SemanticError as error:
            self.state, self.why = "failed", error.message
        else:
            self.state, self.done_bytes = "done", model.size_bytes
        finally:
            if self.state == "running":
                self.state, self.why = "failed", "internal error"

    def _add(self, count: int) -> None:
        self.done_bytes += count


class Downloads:
    """Downloads one model at a time, on a thread of its own. Any thread may ask."""

    def __init__(self, app: App) -> None:
        del app
        self._lock = threading.Lock()
        self._all: tuple[Download, ...] = ()

    def start(self, entry: ModelEntry) -> Download:
        """Start a download; one of the same model goes on.

        Raises:
            TransportError: 409: another model is downloaded.
        """
        with self._lock:
            for one in self._all:
                if one.state == "running" and one.model == entry.name:
                    return one
                if one.state == "running":
                    message = f"{one.model} is being downloaded; ask again when it has ended"
                    raise TransportError(409, "download_running", message)
            begun = Download(entry.name)
            others = (one for one in self._all if one.model != entry.name)
            self._all = (begun, *others)[:_DOWNLOADS_MAX]
        threading.Thread(target=begun.run, args=(entry,), name="download", daemon=True).start()
        return begun

    def all(self) -> tuple[Download, ...]:
        """Return them, the newest first."""
        return self._all


_NAME: Final = path("name", example="mlx-community/Qwen3.5-4B-4bit")
_SEARCH: Final = text(
    "search", "words in the name; by default the most downloaded are listed", pattern=_WORDS
)


def list_suggestions(app: App, request: Request) -> Suggestions:
    """List models that are worth a try, and how many contexts of each fit this machine."""
    del request
    models = app.model_stock.all()
    return suggestions(model.entry.source for model in models if model.files is not None)


def search_models(app: App, request: Request) -> HubSearch:
    """Search the hub for models in the format of MLX."""
    del app
    return search_hub(_SEARCH.read(request) or "")


def pull_model(app: App, request: Request) -> DownloadObject:
    """Download a model of the hub, or what is missing of it."""
    name = _NAME.read(request)
    entry = app.registry().get(name) or ModelEntry(name=name, source=name)
    if not is_hub_id(entry.source):
        raise InvalidRequest("is no id of the hub (owner/name)", field="name")
    return shown(DownloadObject, app.once(Downloads).start(entry), object="download")


def list_downloads(app: App, request: Request) -> Objects[DownloadObject]:
    """List the downloads since the start of the api, the newest first."""
    del request
    found = app.once(Downloads).all()
    return {
        "object": "list",
        "data": [shown(DownloadObject, one, object="download") for one in found],
    }


HUB_OPERATIONS: Final = (
    Operation("GET /admin/suggestions", list_suggestions),
    Operation(
        "GET /admin/hub",
        search_models,
        id="searchHub",
        parameters=(_SEARCH,),
        access=Access.OPERATE,
    ),
    Operation(
        "POST /admin/models/{name}/pull",
        pull_model,
        parameters=(_NAME,),
        status=202,
        responses={409: "Another model is being downloaded."},
        access=Access.OPERATE,
    ),
    Operation("GET /admin/downloads", list_downloads, access=Access.READ_ALL),
)
