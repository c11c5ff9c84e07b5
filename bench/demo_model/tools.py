"""Which tools are offered, and the questions that need a call."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from bench.demo_model.dialogue import (
    Random,
    Tool,
    Turn,
    any_words,
    ask,
    drawn_turn,
    facts,
    file_path,
    identifier,
    known_tools,
    listed,
    phrases,
    pick,
    tool,
    words,
)

TurnMaker = Callable[[Random], Turn]

_NOTHING_PRINTED = "The command printed nothing."
_SILENT = ("", "(no output)", "(completed with no output)")


def coding_tools(random_: Random, size: int) -> list[Tool]:
    """Return what a coding agent offers: files and shell, and about `size` others.

    Some of the others are known, most have invented names, as with extensions.
    """
    names = ("Bash", "Read", "Write", "Edit")
    known = [definition for name, definition in known_tools().items() if name not in names]
    others = random_.sample(known, min(size, random_.randint(0, len(known))))
    others += [unheard_of_tool(random_)[0] for _ in range(size - len(others))]
    chosen = [known_tools()[name] for name in names] + others
    if random_.random() < 0.5:
        return sorted(chosen, key=lambda definition: str(definition["function"]["name"]))
    random_.shuffle(chosen)
    return chosen


def choose_tools(random_: Random, needed: list[Tool]) -> list[Tool]:
    """Return a random choice of tools that contains `needed`."""
    size = random_.choice((0, 0, 1, 1, 1, 2, 2, 3, 4, 12))
    names = {definition["function"]["name"] for definition in needed}
    others = [definition for name, definition in known_tools().items() if name not in names]
    chosen = needed + random_.sample(others, size)
    random_.shuffle(chosen)
    return chosen


def unheard_of_tool(random_: Random) -> tuple[Tool, str]:
    """Return a tool with an invented name, and the name of its parameter."""
    verb = random_.choice(("get", "fetch", "find", "create", "update", "delete", "run", "check"))
    name = f"{verb}_{random_.choice(listed('words'))}"
    parameter = random_.choice(("id", "name", "symbol", "key", "query", "path", "text", "user"))
    return tool(name, f"{verb} something", parameter), parameter


def _turn(user: str, name: str, arguments: Mapping[str, str], result: str, answer: str) -> Turn:
    """Return a turn with one call of a known tool."""
    return Turn(
        user=user, tool=known_tools()[name], arguments=arguments, result=result, answer=answer
    )


def calculation(random_: Random) -> Turn:
    """A sum that is too large to know."""
    left, right = random_.randint(20, 999), random_.randint(20, 999)
    sign = random_.choice("+-*")
    task = f"{left} {sign} {right}"
    value = {"+": left + right, "-": left - right, "*": left * right}[sign]
    user = ask(random_, *phrases("calculation"), value=task)
    return _turn(user, "calculator", {"expression": task}, str(value), f"{task} = {value}")


def read_file(random_: Random) -> Turn:
    """The contents of a file."""
    path = file_path(random_)
    lines = [words(random_, 1, 5) for _ in range(random_.randint(1, 4))]
    result = "\n".join(lines)
    if random_.random() < 0.5:
        mark = random_.choice(("     {}\u2192", "{}\t", "{}\t"))
        result = "\n".join(mark.format(number) + line for number, line in enumerate(lines, 1))
        result += random_.choice(("", "", f"\n{mark.format(len(lines) + 1)}"))
    user = ask(random_, *phrases("read_file"), value=path)
    answer = f"The file {path} contains:\n" + "\n".join(lines)
    return _turn(user, "Read", {"file_path": path}, result, answer)


def command(random_: Random) -> Turn:
    """A shell command, described or spelt out."""
    commands, said = facts("commands"), phrases("command")
    line = random_.choice(list(commands))
    user = random_.choice(commands[line])
    if random_.random() < 0.5:
        line = random_.choice(listed("free_commands"))
        if line.startswith("echo"):
            line = line.replace("{}", any_words(random_, 1, 4).replace("\n", " "))
        while "{}" in line:
            line = line.replace("{}", identifier(random_), 1)
        # Commands are copied as they are: their spelling is not to be disturbed.
        user = random_.choice(said).replace("{}", line)
    elif random_.random() < 0.4:
        user = random_.choice(said).replace("{}", line)
    output = "\n".join(any_words(random_, 1, 3) for _ in range(random_.randint(1, 3)))
    if random_.random() < 0.25 and line.startswith("echo "):
        output = line.removeprefix("echo ")
    if random_.random() < 0.15:
        return _turn(user, "Bash", {"command": line}, random_.choice(_SILENT), _NOTHING_PRINTED)
    return _turn(user, "Bash", {"command": line}, output, f"The command printed:\n{output}")


def unheard_of(random_: Random) -> Turn:
    """A tool whose name must be copied."""
    definition, parameter = unheard_of_tool(random_)
    name, value = definition["function"]["name"], identifier(random_)
    wording = random_.choice(phrases("unheard_of"))
    user = wording.format(name=name, parameter=parameter, value=value)
    result = words(random_, 1, 4)
    return Turn(
        user=user,
        tool=definition,
        arguments={parameter: value},
        result=result,
        answer=f"The tool returned: {result}",
    )


_WRITE_FILE: Final = partial(drawn_turn, "write_file")
_EDIT_FILE: Final = partial(drawn_turn, "edit_file")
_SUBAGENT: Final = partial(drawn_turn, "subagent")
KINDS: Mapping[TurnMaker, float] = {
    partial(drawn_turn, "weather"): 4,
    partial(drawn_turn, "clock"): 1.5,
    calculation: 1.5,
    partial(drawn_turn, "search"): 1.5,
    read_file: 3,
    _WRITE_FILE: 4,
    _EDIT_FILE: 1,
    command: 5,
    partial(drawn_turn, "search_code"): 1,
    _SUBAGENT: 2,
    unheard_of: 2,
}
#: What coding agents offer.
CODING_KINDS: Mapping[TurnMaker, float] = {
    _WRITE_FILE: 5,
    command: 6,
    read_file: 4,
    _EDIT_FILE: 2,
    _SUBAGENT: 2,
}


def tool_turn(random_: Random, kinds: Mapping[TurnMaker, float] = KINDS) -> Turn:
    """Return one turn of a random kind that takes a tool."""
    return pick(random_, kinds)(random_)


def out_of_reach(random_: Random, names: tuple[str, ...]) -> Turn:
    """Return a question that needs one of some tools, and the answer where none is offered."""
    turn = tool_turn(random_)
    while turn.name not in names:
        turn = tool_turn(random_)
    return Turn(
        user=turn.user,
        answer=f"I have no tool to reach {facts('out_of_reach')[turn.name]}.",
        thought="I have no tool.",
    )
