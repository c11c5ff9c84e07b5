"""Commands on the event log and its database."""

from typing import Final

#: What the help of the command line shows for them.
LOG_HELP: Final = "The event log: list, check, back up, archive and erase."
