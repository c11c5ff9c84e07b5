"""Programs of others that run in workflows and hooks are pinned by their commit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # pyyaml ships no types

from tests.supply_chain.locked import ROOT

_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"docker://.+@sha256:[0-9a-f]{64}")


def unpinned_actions(workflow: Any) -> Iterator[str]:
    """Yield the actions, reusable workflows and images that a tag could replace."""
    for job in workflow.get("jobs", {}).values():
        for step in (job, *job.get("steps", ())):
            used = step.get("uses")
            if used is None or used.startswith("./") or _DIGEST.fullmatch(used):
                continue
            if not _COMMIT.fullmatch(used.rpartition("@")[2]):
                yield used


def unpinned_hooks(config: Any) -> Iterator[str]:
    """Yield the repositories of hooks that a tag could replace."""
    for repo in config["repos"]:
        if repo["repo"] not in {"local", "meta"} and not _COMMIT.fullmatch(str(repo["rev"])):
            yield repo["repo"]


def test_actions_and_hooks_are_pinned() -> None:
    workflows = [
        *(ROOT / ".github" / "workflows").glob("*.y*ml"),
        *(ROOT / ".forgejo" / "workflows").glob("*.y*ml"),
    ]
    found = [
        one for file in workflows for one in unpinned_actions(yaml.safe_load(file.read_text()))
    ]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert not [*found, *unpinned_hooks(hooks)]


@pytest.mark.parametrize(
    ("used", "is_pinned"),
    [
        ("actions/checkout@v5", False),
        ("actions/checkout@main", False),
        ("docker://alpine:3", False),
        ("actions/checkout@" + "0a" * 20, True),
        ("docker://alpine@sha256:" + "0a" * 32, True),
        ("./own/action", True),
    ],
)
def test_action_needs_a_commit(used: str, *, is_pinned: bool) -> None:
    assert bool([*unpinned_actions({"jobs": {"a": {"steps": [{"uses": used}]}}})]) != is_pinned
    assert bool([*unpinned_actions({"jobs": {"a": {"uses": used}}})]) != is_pinned


def test_hook_needs_a_commit() -> None:
    assert [*unpinned_hooks({"repos": [{"repo": "x", "rev": "v1"}]})] == ["x"]
    assert not [*unpinned_hooks({"repos": [{"repo": "x", "rev": "0a" * 20}]})]
