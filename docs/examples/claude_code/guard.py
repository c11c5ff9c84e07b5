"""PreToolUse hook of Claude Code: refuse shell commands that delete files or use Git.

Claude Code gives the call as JSON on stdin, and reads the decision as JSON from stdout. A refused
call goes back to the model with the reason. The hook is a net for a model that errs, not a wall:
a shell has other ways to do both.
"""

from __future__ import annotations

import json
import shlex
import sys

REFUSED = {"git", "rm", "rmdir", "shred", "unlink"}


def main() -> None:
    """Print the decision on one call; no output leaves it to Claude Code's own rules."""
    command: str = json.load(sys.stdin)["tool_input"].get("command", "")
    found = REFUSED & set(words_of(command))
    if found:
        decision = {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": f"{min(found)} is not allowed in this project",
        }
        print(json.dumps({"hookSpecificOutput": decision}))


def words_of(command: str) -> list[str]:
    """Return the words of a command line; of a broken one, what white space separates."""
    try:
        return list(shlex.shlex(command, posix=True, punctuation_chars=True))
    except ValueError:
        return command.split()


if __name__ == "__main__":
    main()
