"""The tree holds no secret, and the scan finds one that is planted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.supply_chain.locked import ROOT
from tests.supply_chain.secret_scan import FORMATS, files_of, known, scan, scan_text

DRAWN = "k7Qp2ZsX9vLm4TnB8wRc6YdH3jFg5KaE"
PLANTED = {
    "private key": "-----BEGIN OPENSSH " + "PRIVATE KEY-----",
    "AWS key id": "AKIA" + "Q3ZK7XW2LPN5VTRB",
    "GitHub token": "ghp_" + DRAWN + "x1Y2",
    "Slack token": "xoxb-" + "1234567890-abcdef",
    "Anthropic key": "sk-ant-" + DRAWN,
    "OpenAI key": "sk-proj-" + DRAWN,
    "Hugging Face token": "hf_" + DRAWN,
    "Google key": "AIza" + DRAWN + "abc",
    "webhook secret": "whsec_" + DRAWN,
    "JSON Web Token": ".".join(["eyJ" + DRAWN, "eyJ" + DRAWN, DRAWN]),
    "URL with a password": "redis://user:" + DRAWN + "@host",
}


def test_tree_holds_no_secret() -> None:
    findings = list(scan(ROOT, files_of(ROOT)))
    assert not [one for one in findings if one.digest not in known()]
    # A known value that is gone needs no exception.
    assert {*known()} == {one.digest for one in findings} & {*known()}


@pytest.mark.parametrize("what", FORMATS)
def test_planted_secret_is_found_with_its_line_and_is_not_printed(what: str) -> None:
    (found,) = scan_text("a.py", f"\nvalue: {PLANTED[what]}\n")
    assert (found.what, found.line) == (what, 2)
    assert PLANTED[what] not in repr(found)


@pytest.mark.parametrize(
    "line", ['API_KEY = "{}"', "password: '{}'", '{{"client_secret": "{}"}}', 'TOKEN="{}"']
)
def test_random_literal_of_a_telling_name_is_found(line: str) -> None:
    (found,) = scan_text("a.py", line.format(DRAWN))
    assert found.what == "random literal"


@pytest.mark.parametrize(
    "line",
    ['token = "a_name_in_snake_case_2"', "api_key: ''", 'digest = "' + "0123abcd" * 8 + '"'],
)
def test_ordinary_literals_are_no_secrets(line: str) -> None:
    assert not list(scan_text("a.py", line))


def test_new_file_is_scanned_before_it_is_committed_and_an_ignored_one_is_not(
    tmp_path: Path,
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.log\n")
    for name in ("new.py", "old.log"):
        (tmp_path / name).write_text(PLANTED["GitHub token"])
    assert {one.path for one in scan(tmp_path, files_of(tmp_path))} == {"new.py"}
