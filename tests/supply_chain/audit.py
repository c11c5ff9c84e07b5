"""Asks the vulnerability database about every locked package: ``make audit``.

``pip-audit`` runs in an environment of its own, so that its packages are no dependencies of the
service or of its tests. The exit code is 0 without a known vulnerability, 1 with one, and 2 if a
package could not be checked, such as on a machine without the network.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.supply_chain.locked import ROOT, RUNTIME, LockedPackage, locked, normalised
from tests.support.polling import scaled

FOUND, UNCHECKED = 1, 2
#: The database of the OSV project answers for a version, without downloading the package.
_SERVICE: Final = "osv"
_WITHIN_S: Final = 600.0


class _NotCheckedError(Exception):
    """The program gave no answer; the message has the reason."""


def audit(program: Path, requirements: Path) -> int:
    """Check one file of locked requirements, print the result and return the exit code.

    ``pip-audit`` leaves out the requirements of other platforms and Python versions, and takes one
    version of a package. So it gets copies of the file without markers, as many as a package has
    versions.

    Args:
        program: The ``pip-audit`` to run.
        requirements: A file of locked requirements with hashes.
    """
    packages = locked(requirements)
    copies = max(map(len, packages.values()), default=0)
    answers: list[dict[str, Any]] = []
    with TemporaryDirectory() as directory:
        for number in range(copies):
            pins = [versions[number] for versions in packages.values() if number < len(versions)]
            copy = Path(directory) / f"{number}-{requirements.name}"
            copy.write_text("".join(map(_line, pins)), encoding="utf-8")
            try:
                answers += _ask(program, copy)
            except _NotCheckedError as error:
                return _unchecked(requirements, str(error))
    found = [(one, vulnerability) for one in answers for vulnerability in one["vulns"]]
    for package, vulnerability in found:
        fixes = ", ".join(vulnerability.get("fix_versions", ())) or "no release"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixes}")  # noqa: T201 - a command
    wanted = {(pin.name, pin.version) for versions in packages.values() for pin in versions}
    missing = wanted - {(normalised(one["name"]), one["version"]) for one in answers}
    if missing or not wanted:
        names = ", ".join(f"{name}=={version}" for name, version in sorted(missing))
        return _unchecked(requirements, f"no answer for {names}" if names else "it has no package")
    print(f"{requirements.name}: {len(wanted)} packages, {len(found)} known vulnerabilities")  # noqa: T201 - a command
    return FOUND if found else 0


def _line(pin: LockedPackage) -> str:
    hashes = "".join(f" --hash=sha256:{digest}" for digest in pin.digests)
    return f"{pin.name}=={pin.version}{hashes}\n"


def _ask(program: Path, requirements: Path) -> list[dict[str, Any]]:
    """Return the answers for the packages of a file."""
    command = [str(program), "--vulnerability-service", _SERVICE, "--disable-pip"]
    command += ["--require-hashes", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--requirement", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(_WITHIN_S),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _NotCheckedError(str(error)) from error
    try:
        answers: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError, TypeError) as error:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise _NotCheckedError(reason) from error
    skipped = [one["skip_reason"] for one in answers if "skip_reason" in one]
    if skipped or not answers:
        reason = skipped[0] if skipped else "it lists no package"
        raise _NotCheckedError(f"{len(skipped)} packages, the first: {reason}")
    return answers


def _unchecked(requirements: Path, reason: str) -> int:
    print(f"{requirements.name} was not checked: {reason}", file=sys.stderr)  # noqa: T201 - a command
    return UNCHECKED


def locked_files() -> Sequence[Path]:
    """Return all files of locked requirements, those of the examples last."""
    examples = (ROOT / "docs" / "examples").glob("*/requirements.txt")
    return (*sorted(RUNTIME.parent.glob("requirements*.txt")), *sorted(examples))


def main() -> int:
    """Check all locked files."""
    parser = argparse.ArgumentParser(prog="python -m tests.supply_chain.audit", description=__doc__)
    default = ROOT / ".venv" / "audit" / "bin" / "pip-audit"
    parser.add_argument("--program", type=Path, default=default, help="pip-audit")
    program: Path = parser.parse_args().program
    return max(audit(program, file) for file in locked_files())


if __name__ == "__main__":
    sys.exit(main())
