"""Signs the head of the log now and then while a service runs, and once more when it has ended."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from domain.errors import CorruptLog, SemanticError
from domain.log.checkpoints import SignedCheckpoint
from ops.adapters.event_log.sqlite_driver import database_file, reader_engine
from ops.adapters.log_admin.checkpoint_files import CheckpointFiles, sign_log
from ops.clock import SystemClock
from ops.logs import Logger
from ops.settings import Settings

_JOIN_S = 10.0


class CheckpointSigner:
    """A thread of its own; use it in a ``with`` around the life of the service.

    Args:
        settings: Say where the log and its heads are, and how often to sign.
        logger: Told of a log that is not where its last head left it.
    """

    def __init__(self, settings: Settings, logger: Logger) -> None:
        self._settings = settings
        self._logger = logger
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="head-signer", daemon=True)

    def sign(self) -> SignedCheckpoint | None:
        """Note the head once; a failure is logged, as the service can do its work without."""
        file = database_file(self._settings.log_url)
        if file is not None and not file.exists():
            return None
        engine = reader_engine(self._settings.log_url)
        try:
            return sign_log(
                engine, CheckpointFiles.of(self._settings.data_dir), clock=SystemClock()
            )
        except CorruptLog as error:
            self._logger.critical("log_went_back", why=error.message, run="semantic events verify")
        except SemanticError as error:
            self._logger.warning("head_not_signed", why=error.message)
        finally:
            engine.dispose()
        return None

    def __enter__(self) -> Self:
        self.sign()  # says at once if the log was put back while nothing ran
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)
        self.sign()

    def _run(self) -> None:
        while not self._closed.wait(self._settings.log.sign_interval_s):
            self.sign()
