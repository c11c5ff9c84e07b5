"""Downloads a model from the hub into its local cache; large files continue after a kill.

The hub library begins a file anew after its process was killed, and weights have files of many
gigabytes. So these are fetched here, with the library's own requests, into
``blobs/SHA256.incomplete``; each is checked before it gets its name in the cache. The library
fetches the small files and builds the snapshot.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Self

from huggingface_hub import HfApi, constants, hf_hub_url, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # both are documented there
    build_hf_headers,
    disable_progress_bars,
)

from domain.errors import SemanticError
from domain.kv.plan import size_text
from ops.data_dir.free_space import nearest_existing
from ops.models.hub_cache import HUB_FILES, cached_model, hub_cache_dir

#: Size from which a file continues where an earlier download ended, in bytes.
LARGE_BYTES = 8 * 2**20
#: Space that a download leaves free on the disk, for the event log, in bytes.
FREE_BYTES_KEPT = 2**30

OnBytes = Callable[[int], None]


class PullFailed(SemanticError):
    """A model could not be downloaded; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository.

    Attributes:
        sha256: In hex, of files that the hub stores by content.
    """

    name: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub.

    Attributes:
        hub_id: ``owner/name``.
        revision: The branch, tag or commit that was asked for; ``None`` for the main branch.
        commit: What it means now.
    """

    hub_id: str
    revision: str | None
    commit: str
    files: tuple[HubFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def present_bytes(self) -> int:
        """Bytes of them that are here, those of incomplete files included."""
        return sum(self._present(file) for file in self.files)

    def blob(self, file: HubFile) -> Path:
        """Return where the cache keeps the content of a large file."""
        folder = repo_folder_name(repo_id=self.hub_id, repo_type="model")
        return hub_cache_dir() / folder / "blobs" / str(file.sha256)

    def snapshot(self, file: HubFile) -> Path:
        """Return where the cache has a file of the commit."""
        folder = repo_folder_name(repo_id=self.hub_id, repo_type="model")
        return hub_cache_dir() / folder / "snapshots" / self.commit / file.name

    def _present(self, file: HubFile) -> int:
        if self.snapshot(file).exists() or (file.sha256 and self.blob(file).exists()):
            return file.size_bytes
        partial = incomplete(self.blob(file))
        if file.sha256 and partial.exists():
            return min(partial.stat().st_size, file.size_bytes)
        return 0


def incomplete(blob: Path) -> Path:
    """Return the file that collects a blob."""
    return blob.with_name(f"{blob.name}.incomplete")


def find_on_hub(hub_id: str, revision: str | None = None) -> HubModel:
    """Return a model's files, as the hub lists them.

    Raises:
        PullFailed: The hub does not answer, or has no such model for this user.
    """
    try:
        info = HfApi().model_info(hub_id, revision=revision, files_metadata=True)
    except Exception as error:
        raise _failure(error, hub_id, revision) from error
    files = tuple(
        HubFile(
            name=found.rfilename,
            size_bytes=found.size or 0,
            sha256=None if found.lfs is None else found.lfs.sha256,
        )
        for found in info.siblings or ()
        if any(fnmatchcase(found.rfilename, pattern) for pattern in HUB_FILES)
    )
    names = {file.name for file in files}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise PullFailed(f"{hub_id} holds no model: no config.json with safetensors weights")
    return HubModel(hub_id=hub_id, revision=revision, commit=str(info.sha), files=files)


def pull(model: HubModel, on_bytes: OnBytes) -> Path:
    """Download what is not here; return the directory of the model.

    Args:
        model: From ``find_on_hub``.
        on_bytes: Receives the number of bytes with each piece that arrives.

    Raises:
        PullFailed: There is no space, the hub does not answer, or a file arrived damaged. What has
            arrived stays, and the next call continues there.
    """
    _check_space(model)
    disable_progress_bars()
    try:
        for file in model.files:
            is_large = file.size_bytes >= LARGE_BYTES and file.sha256 is not None
            # The library alone can fetch what is too large for one HTTP response.
            if is_large and file.size_bytes <= constants.MAX_HTTP_DOWNLOAD_SIZE:
                _fetch(model, file, on_bytes)
        patterns = list(HUB_FILES)
        snapshot_download(model.hub_id, revision=model.revision, allow_patterns=patterns)
    except PullFailed:
        raise
    except Exception as error:
        raise _failure(error, model.hub_id, model.revision) from error
    directory = cached_model(model.hub_id, model.revision)
    if directory is None:
        raise PullFailed(
            f"{model.hub_id} is not whole: its index names files that it does not have"
        )
    return directory


def _check_space(model: HubModel) -> None:
    place = nearest_existing(hub_cache_dir())
    needed = model.size_bytes - model.present_bytes
    free = shutil.disk_usage(place).free
    if needed and needed + FREE_BYTES_KEPT > free:
        raise PullFailed(
            f"{model.hub_id} needs {size_text(needed)} more, and {size_text(FREE_BYTES_KEPT)} must"
            f" stay free, but {place} has {size_text(free)} free"
        )


def _fetch(model: HubModel, file: HubFile, on_bytes: OnBytes) -> None:
    """Fetch a large file, from where an earlier download ended."""
    blob = model.blob(file)
    if blob.exists() or model.snapshot(file).exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    partial = incomplete(blob)
    with partial.open("ab") as output:
        _lock(output, model)
        begun = os.fstat(output.fileno()).st_size
        if begun > file.size_bytes:
            output.truncate(0)
            begun = 0
        http_get(
            hf_hub_url(model.hub_id, file.name, revision=model.commit),
            output,
            resume_size=begun,
            headers=build_hf_headers(),
            expected_size=file.size_bytes,
            displayed_filename=file.name,
            tqdm_class=lambda **_: _Bar(on_bytes),  # type: ignore[arg-type]  # called, never subclassed
        )
        output.flush()
        os.fsync(output.fileno())
        with partial.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        if digest != file.sha256:
            partial.unlink()
            raise PullFailed(f"{file.name} arrived damaged and was deleted; pull it again")
        partial.replace(blob)


def _lock(output: BinaryIO, model: HubModel) -> None:
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PullFailed(f"another process is downloading {model.hub_id}") from error


class _Bar:
    """The part of a progress bar of tqdm that ``http_get`` uses."""

    def __init__(self, on_bytes: OnBytes) -> None:
        self.update = on_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _failure(error: Exception, hub_id: str, revision: str | None) -> PullFailed:
    """Return the reason in words; the hub library passes on errors of many others."""
    match error:
        case GatedRepoError():
            terms = f"{constants.ENDPOINT}/{hub_id}"
            message = f"{hub_id} is gated: accept its terms at {terms}, and set HF_TOKEN"
        case RevisionNotFoundError():
            message = f"{hub_id} has no revision {revision}"
        case RepositoryNotFoundError():
            message = f"the hub has no model {hub_id}, or it is private and needs HF_TOKEN"
        case HFValidationError():
            message = f"{hub_id} is no hub id (owner/name)"
        case HfHubHTTPError():
            message = f"the hub refused: {_first_line(error)}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            place = hub_cache_dir()
            message = f"the disk of {place} is full; with more space the download continues"
        case _:
            message = (
                f"no answer from {constants.ENDPOINT}: {type(error).__name__}:"
                f" {_first_line(error)}; a further pull continues where this one ended"
            )
    return PullFailed(message)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no reason given"
