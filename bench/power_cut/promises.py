"""What was promised up to a moment, folded from the marks of a recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Texts:
    """The digests of a job's texts that somebody was promised.

    Attributes:
        agent: Whose job it is, if it has an agent.
        prompt: Digest of its prompt.
        answer: Digest of its answer; ``None`` unless its end was seen.
    """

    agent: str | None
    prompt: str
    answer: str | None = None


@dataclass(slots=True)
class Promises:
    """The promises that hold at one moment.

    Attributes:
        jobs: Accepted jobs.
        webhook_key: The secret of the webhooks, once it was used.
        heads: Signed checkpoints: hash by position.
        blocks: Names of the stored blocks that nothing may have evicted.
        archives: Names of the archive files.
        backup: Head of the completed backup: position and hash.
        jobs_in_backup: The jobs that it holds.
        restoring: Whether a restore has begun that has not ended.
        erasing: Blocks of the agent whose erasure has begun.
        erased: The agents that were erased.
    """

    jobs: dict[str, Texts] = field(default_factory=dict)
    webhook_key: str | None = None
    heads: dict[int, str] = field(default_factory=dict)
    blocks: set[str] = field(default_factory=set)
    archives: list[str] = field(default_factory=list)
    backup: tuple[int, str] | None = None
    jobs_in_backup: dict[str, Texts] = field(default_factory=dict)
    restoring: bool = False
    erasing: tuple[str, ...] = ()
    erased: set[str] = field(default_factory=set)

    def add(self, mark: dict[str, Any]) -> None:
        """Take up one mark."""
        match mark:
            case {"accepted": job, "agent": agent, "prompt": prompt}:
                self.jobs[job] = Texts(agent, prompt)
            case {"ended": job, "agent": agent, "answer": answer}:
                self.jobs[job] = Texts(agent, self.jobs[job].prompt, answer)
            case {"webhook_key": key}:
                self.webhook_key = key
            case {"signed": position, "hash": hash_}:
                self.heads[position] = hash_
            case {"may_evict": names}:
                self.blocks -= set(names)
            case {"blocks": names}:
                self.blocks |= set(names)
            case _:
                self._add_of_operator(mark)

    def _add_of_operator(self, mark: dict[str, Any]) -> None:
        match mark:
            case {"archive": file}:
                self.archives.append(file)
            case {"erasing": names}:
                self.erasing = tuple(names)
                self.blocks -= set(names)
            case {"erased": agent}:
                self.erased.add(agent)
            case {"backup": position, "hash": hash_}:
                self.backup = (position, hash_)
                self.jobs_in_backup = dict(self.jobs)
            case {"restoring": True}:
                self.restoring = True
            case {"restored": position, "hash": hash_}:
                self.restoring = False
                self.jobs = dict(self.jobs_in_backup)
                self.archives.clear()
                self.heads = {at: old for at, old in self.heads.items() if at < position}
                self.heads[position] = hash_
            case _:
                msg = f"no such mark: {mark}"
                raise ValueError(msg)
