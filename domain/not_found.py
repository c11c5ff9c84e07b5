"""The errors for things that a caller names and that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from domain.errors import InvalidRequest, NotFound, PayloadDamaged

#: Names that a message lists.
NAMES_MAX = 20
#: Characters of an unknown name that the message repeats.
NAME_CHARS_MAX = 200


class JobNotFound(NotFound):
    """There is no job of that id."""

    code = "job_not_found"

    def __init__(self, job_id: str) -> None:
        super().__init__(f"job {job_id} does not exist")


class ResponseNotFound(NotFound):
    """There is no response of that id, or it was deleted, or was not to be stored."""

    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"response {response_id} does not exist")


class PreviousResponseNotFound(InvalidRequest):
    """A request goes on from a response that is not there."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"previous response {response_id} does not exist", field="previous_response_id"
        )


class ModelNotFound(NotFound):
    """No model of that name is served.

    Args:
        model: The name in the request.
        known: Names that exist.
    """

    code = "model_not_found"

    def __init__(self, model: str, *, known: tuple[str, ...] = ()) -> None:
        further = len(known) - NAMES_MAX
        more = f" and {further} more" if further > 0 else ""
        names = f"; there is: {', '.join(known[:NAMES_MAX])}{more}" if known else ""
        shown = model if len(model) <= NAME_CHARS_MAX else f"{model[:NAME_CHARS_MAX]}…"
        super().__init__(f"model {shown} is not served here{names}")


class SwapNotFound(NotFound):
    """There is no swap of that id, or it is too old to be shown."""

    code = "swap_not_found"

    def __init__(self, swap_id: str) -> None:
        super().__init__(f"swap {swap_id} does not exist")


class AgentNotFound(NotFound):
    """There is no agent of that id, or it was deleted."""

    code = "agent_not_found"

    def __init__(self, agent: str) -> None:
        super().__init__(f"agent {agent} does not exist")


class WorkerNotFound(NotFound):
    """No living worker has that id or place."""

    code = "worker_not_found"

    def __init__(self, worker: str, *, known: Sequence[str]) -> None:
        alive = ", ".join(known) or "none"
        super().__init__(f"no worker {worker} is alive; there is: {alive}")


class BatchNotFound(NotFound):
    """There is no batch of that id, or it was deleted."""

    code = "batch_not_found"

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"batch {batch_id} does not exist")


class FileNotFound(NotFound):
    """There is no file of that id, or it was deleted or has expired."""

    code = "file_not_found"

    def __init__(self, file_id: str) -> None:
        super().__init__(f"file {file_id} does not exist")


class WebhookNotFound(NotFound):
    """There is no webhook of that id, or it has been over for long."""

    code = "webhook_not_found"

    def __init__(self, webhook_id: str) -> None:
        super().__init__(f"webhook {webhook_id} does not exist")


class PayloadMissing(NotFound):
    """A payload that an event refers to was erased or never stored."""

    code = "payload_missing"

    def __init__(self, digest: str) -> None:
        super().__init__(f"payload {digest} is not stored")


#: What a reader catches that can go on without a text.
TEXT_LOST: Final = (PayloadMissing, PayloadDamaged)
