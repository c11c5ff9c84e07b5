"""Sign checkpoints of the log at an interval while a service runs, and once after its end."""

from __future__ import annotations

import threading
from typing import Final, Self

from domain.errors import CorruptLog, SemanticError
from domain.log.checkpoints import SignedCheckpoint
from ops.clock import SystemClock
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log
from ops.log.database import database_file, reader_engine
from ops.observe.logs import Logger
from ops.settings.settings import Settings

#: Seconds between two signed checkpoints; later events have no signature yet.
SIGN_INTERVAL_S: Final = 300.0
_JOIN_S = 10.0


class CheckpointSigner:
    """A thread that signs checkpoints; a context manager around the life of the service.

    Args:
        settings: Location of the log and its checkpoints.
        logger: Receives an error if the log is behind its last checkpoint.
    """

    def __init__(
        self, settings: Settings, logger: Logger, *, interval_s: float = SIGN_INTERVAL_S
    ) -> None:
        self._settings = settings
        self._logger = logger
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-signer", daemon=True)

    def sign(self) -> SignedCheckpoint | None:
        """Sign one checkpoint; a failure is logged and does not stop the service."""
        file = database_file(self._settings.log_url)
        if file is not None and not file.exists():
            return None
        engine = reader_engine(self._settings.log_url)
        try:
            return sign_log(
                engine, CheckpointFiles.of(self._settings.data_dir), clock=SystemClock()
            )
        except CorruptLog as error:
            self._logger.critical("log_went_back", why=error.message, run="semantic log verify")
        except SemanticError as error:
            self._logger.warning("head_not_signed", why=error.message)
        finally:
            engine.dispose()
        return None

    def __enter__(self) -> Self:
        self.sign()  # detects at once a log that was restored while no service ran
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join(_JOIN_S)
        self.sign()

    def _run(self) -> None:
        while not self._closed.wait(self._interval_s):
            self.sign()
