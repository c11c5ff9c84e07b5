"""Tool definitions, and questions that need a call: each function makes one turn of one kind."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from bench.demo_model.dialogue import (
    Random,
    ToolTurn,
    any_words,
    ask,
    cities,
    facts,
    file_path,
    identifier,
    listed,
    phrases,
    pick,
    words,
)

Tool = dict[str, Any]
ToolTurnMaker = Callable[[Random], ToolTurn]

_NOTHING_PRINTED = "The command printed nothing."
_SILENT = ("", "(no output)", "(completed with no output)")


def tool(name: str, description: str, *parameters: str) -> Tool:
    """Return a function definition whose parameters are required strings."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string"} for parameter in parameters},
                "required": list(parameters),
            },
        },
    }


@cache
def known_tools() -> Mapping[str, Tool]:
    """Return the tools whose names the model learns."""
    return {name: tool(name, *described) for name, described in facts("tools").items()}


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


def _turn(user: str, name: str, arguments: Mapping[str, str], result: str, answer: str) -> ToolTurn:
    """Return a turn with one call of a known tool."""
    return ToolTurn(user, known_tools()[name], arguments, result, answer)


def weather(random_: Random) -> ToolTurn:
    """The weather of a city."""
    city = random_.choice(cities())
    sky = random_.choice(("sunny", "cloudy", "rainy", "windy", "snowy"))
    degrees = random_.randint(-9, 35)
    user = ask(random_, *phrases("weather"), value=city)
    result = random_.choice(
        (f"{sky}, {degrees} degrees", json.dumps({"condition": sky, "temperature": degrees}))
    )
    answer = f"The weather in {city} is {sky} with {degrees} degrees."
    return _turn(user, "get_weather", {"location": city}, result, answer)


def clock(random_: Random) -> ToolTurn:
    """The time in a city."""
    city = random_.choice(cities())
    time = f"{random_.randint(0, 23):02d}:{random_.randint(0, 59):02d}"
    user = ask(random_, *phrases("clock"), value=city)
    return _turn(user, "get_time", {"location": city}, time, f"The time in {city} is {time}.")


def calculation(random_: Random) -> ToolTurn:
    """A sum that is too large to know."""
    left, right = random_.randint(20, 999), random_.randint(20, 999)
    sign = random_.choice("+-*")
    task = f"{left} {sign} {right}"
    value = {"+": left + right, "-": left - right, "*": left * right}[sign]
    user = ask(random_, *phrases("calculation"), value=task)
    return _turn(user, "calculator", {"expression": task}, str(value), f"{task} = {value}")


def search(random_: Random) -> ToolTurn:
    """A search on the web."""
    query, found = words(random_, 1, 4), words(random_, 3, 8)
    name = random_.choice(("web_search", "WebSearch"))
    user = ask(random_, *phrases("search"), value=query)
    return _turn(user, name, {"query": query}, found, f"I found this: {found}")


def read_file(random_: Random) -> ToolTurn:
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


def write_file(random_: Random) -> ToolTurn:
    """A file with a given text."""
    path, text = file_path(random_), any_words(random_, 1, 5)
    if random_.random() < 0.15:
        text = random_.choice(("hello world", "hello", "Hello, world!"))
    user = random_.choice(phrases("write_file")).format(text=text, path=path)
    result = random_.choice(
        (
            f"File created successfully at: {path}",
            f"File created successfully at: {path} ({words(random_, 3, 12)})",
            "ok",
            "The file was written.",
        )
    )
    arguments = {"file_path": path, "content": text}
    return _turn(user, "Write", arguments, result, f"I wrote the file {path}.")


def edit_file(random_: Random) -> ToolTurn:
    """A replacement in a file."""
    path = file_path(random_)
    old, new = any_words(random_, 1, 2), any_words(random_, 1, 2)
    user = random_.choice(phrases("edit_file")).format(old=old, new=new, path=path)
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    result = random_.choice((f"The file {path} has been updated.", "ok"))
    return _turn(user, "Edit", arguments, result, f"I replaced '{old}' with '{new}' in {path}.")


def command(random_: Random) -> ToolTurn:
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


def search_code(random_: Random) -> ToolTurn:
    """A search in files."""
    pattern = identifier(random_)
    found = "\n".join(file_path(random_) for _ in range(random_.randint(1, 3)))
    user = ask(random_, *phrases("search_code"), value=pattern)
    return _turn(user, "Grep", {"pattern": pattern}, found, f"I found {pattern} in:\n{found}")


def subagent(random_: Random) -> ToolTurn:
    """Work for another agent."""
    capitals = list(facts("capitals"))
    task = random_.choice(
        (
            f"find the capital of {random_.choice(capitals)}",
            f"tell me the capital of {random_.choice(capitals)}",
            f"say {any_words(random_, 1, 3)}",
            f"count to {random_.randint(3, 20)}",
            f"read {file_path(random_)}",
            f"run {identifier(random_)}",
            f"look for {any_words(random_, 1, 3)} in {file_path(random_)}",
            any_words(random_, 2, 6),
        )
    ).replace("\n", " ")
    user = random_.choice(phrases("subagent")).replace("{}", task)
    answer = any_words(random_, 1, 6)
    arguments = {"description": task, "prompt": task}
    if random_.random() < 0.25:
        arguments["subagent_type"] = "general-purpose"
        return _turn(user, "Task", arguments, answer, f"The subagent answered: {answer}")
    result, said = answer, f"The subagent answered: {answer}"
    if random_.random() < 0.4:
        result = f"{any_words(random_, 0, 3)} agent launched {any_words(random_, 3, 20)}"
        said = "The subagent is at work."
    return _turn(user, "Agent", arguments, result, said)


def unheard_of(random_: Random) -> ToolTurn:
    """A tool whose name must be copied."""
    definition, parameter = unheard_of_tool(random_)
    name, value = definition["function"]["name"], identifier(random_)
    wording = random_.choice(phrases("unheard_of"))
    user = wording.format(name=name, parameter=parameter, value=value)
    result = words(random_, 1, 4)
    answer = f"The tool returned: {result}"
    return ToolTurn(user, definition, {parameter: value}, result, answer)


KINDS: Mapping[ToolTurnMaker, float] = {
    weather: 4,
    clock: 1.5,
    calculation: 1.5,
    search: 1.5,
    read_file: 3,
    write_file: 4,
    edit_file: 1,
    command: 5,
    search_code: 1,
    subagent: 2,
    unheard_of: 2,
}
#: What coding agents offer.
CODING_KINDS: Mapping[ToolTurnMaker, float] = {
    write_file: 5,
    command: 6,
    read_file: 4,
    edit_file: 2,
    subagent: 2,
}


def tool_turn(random_: Random, kinds: Mapping[ToolTurnMaker, float] = KINDS) -> ToolTurn:
    """Return one turn of a random kind that takes a tool."""
    return pick(random_, kinds)(random_)


def out_of_reach(random_: Random, names: tuple[str, ...]) -> tuple[str, str]:
    """Return a question that needs one of some tools, and the answer where none is offered."""
    turn = tool_turn(random_)
    while turn.name not in names:
        turn = tool_turn(random_)
    return turn.user, f"I have no tool to reach {facts('out_of_reach')[turn.name]}."
