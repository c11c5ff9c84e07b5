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
from pathlib import Path
from typing import Final

from tests.supply_chain.locked import ROOT, RUNTIME

FOUND, UNCHECKED = 1, 2
#: The database of the OSV project answers for a version, without downloading the package.
_SERVICE: Final = "osv"
_WITHIN_S: Final = 600.0


def audit(program: Path, requirements: Path) -> int:
    """Check one file of locked requirements, print the result and return the exit code.

    Args:
        program: The ``pip-audit`` to run.
        requirements: A file of locked requirements with hashes.
    """
    command = [str(program), "--vulnerability-service", _SERVICE, "--disable-pip"]
    command += ["--require-hashes", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(
            [*command, "--requirement", str(requirements)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _unchecked(requirements, str(error))
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, LookupError, TypeError):
        return _unchecked(requirements, (done.stderr.strip().splitlines() or ["no output"])[-1])
    skipped = [one for one in packages if "skip_reason" in one]
    if skipped or not packages:
        reason = skipped[0]["skip_reason"] if skipped else "it lists no package"
        return _unchecked(requirements, f"{len(skipped)} packages, the first: {reason}")
    found = [(one, vulnerability) for one in packages for vulnerability in one["vulns"]]
    for package, vulnerability in found:
        fixes = ", ".join(vulnerability.get("fix_versions", ())) or "no release"
        print(f"{package['name']} {package['version']}: {vulnerability['id']}, fixed in {fixes}")  # noqa: T201 - a command
    print(f"{requirements.name}: {len(packages)} packages, {len(found)} known vulnerabilities")  # noqa: T201 - a command
    return FOUND if found else 0


def _unchecked(requirements: Path, reason: str) -> int:
    print(f"{requirements.name} was not checked: {reason}", file=sys.stderr)  # noqa: T201 - a command
    return UNCHECKED


def main() -> int:
    """Check all locked files."""
    parser = argparse.ArgumentParser(prog="python -m tests.supply_chain.audit", description=__doc__)
    default = ROOT / ".venv" / "audit" / "bin" / "pip-audit"
    parser.add_argument("--program", type=Path, default=default, help="pip-audit")
    program: Path = parser.parse_args().program
    files = sorted(RUNTIME.parent.glob("requirements*.txt"))
    examples = sorted((ROOT / "docs" / "examples").glob("*/requirements.txt"))
    return max(audit(program, file) for file in (*files, *examples))


if __name__ == "__main__":
    sys.exit(main())
