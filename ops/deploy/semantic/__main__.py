"""The ``semantic`` command of an installation.

The names ``api``, ``worker``, ``domain``, ``ops`` and ``migrations`` are too general for
``site-packages``: a wheel has these packages in ``semantic/app``, and only the processes of the
service search that directory. An editable installation has no ``app``; its checkout is searched.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Run the command line with the packages of this installation."""
    app = Path(__file__).with_name("app")
    if app.is_dir():
        sys.path.insert(0, str(app))
    from ops.cli.main import main as run  # noqa: PLC0415 - found on the path of the line above

    run()


if __name__ == "__main__":
    main()
