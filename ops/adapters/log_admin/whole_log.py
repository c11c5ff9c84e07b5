"""Verifies all that a log holds: its database, archives, chain, texts, projections and webhooks."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Engine

from domain.log.record import LogHead
from ops.adapters.event_log.archives import ArchiveReport, verify_archives
from ops.adapters.log_admin.projections_check import ProjectionState, verify_projections
from ops.adapters.log_admin.structure import verify_structure
from ops.adapters.log_admin.verify import Progress, VerifiedPayloads, verify_log, verify_payloads


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLog:
    """What was verified.

    Attributes:
        head: The last event.
        archives: The archives whose files are there, and those that are missing.
        projections: Whether the projections were compared with the events.
    """

    head: LogHead
    archives: ArchiveReport
    texts: VerifiedPayloads
    projections: ProjectionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Called with how far each of the long steps is, and its end."""

    chain: Progress | None = None
    texts: Progress | None = None
    projections: Progress | None = None


def verify_whole_log(
    engine: Engine,
    url: str,
    *,
    archives_of: str | None = None,
    signed_hashes: dict[int, str],
    watchers: Watchers | None = None,
) -> VerifiedLog:
    """Verify a log; a service may append to it meanwhile.

    Args:
        engine: From ``reader_engine``.
        archives_of: URL of the log beside which the archives lie, if not that of the log.
        signed_hashes: By position, from signed checkpoints.
        watchers: See ``Watchers``.

    Raises:
        CorruptLog: Naming the first position that does not verify.
        PayloadDamaged: A text is damaged that no event names.
        LogUnavailable: The database cannot be read.
    """
    watchers, beside = watchers or Watchers(), archives_of or url
    archives = verify_archives(engine, beside, signed_hashes=signed_hashes)
    head = verify_log(engine, progress=watchers.chain, signed_hashes=signed_hashes)
    verify_structure(engine, url, archives)
    texts = verify_payloads(engine, archives_of=beside, progress=watchers.texts)
    projections = verify_projections(engine, beside, progress=watchers.projections)
    return VerifiedLog(head=head, archives=archives, texts=texts, projections=projections)
