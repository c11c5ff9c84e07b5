"""Questions that need a tool call: each function makes one turn of one kind."""

import json
from collections.abc import Callable, Mapping

from bench.demo_model import facts
from bench.demo_model.dialogue import (
    Random,
    ToolTurn,
    any_words,
    ask,
    file_path,
    identifier,
    pick,
    words,
)
from bench.demo_model.toolset import BY_NAME, unheard_of_tool

ToolTurnMaker = Callable[[Random], ToolTurn]

_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "ls": ("List the files", "What files are here?", "ls", "Show me the files in this folder"),
    "pwd": ("What is the current directory?", "Print the working directory", "pwd"),
    "git status": ("git status", "Show the git status", "What changed in the repo?"),
    "pytest": ("Run the tests", "Run pytest", "Please run the test suite"),
    "git log --oneline": ("Show the git log", "List the last commits"),
    "date": ("What is the date today?", "Show the date"),
    "whoami": ("Which user am I?", "whoami"),
    "git diff": ("Show the diff", "git diff"),
    "ls -la": ("List all files", "ls -la"),
    "echo hello": ("Print hello in the shell", "echo hello"),
    "echo hello world": ("echo hello world",),
}
_FREE_COMMANDS = (
    *("echo {}",) * 9,
    "cat {}",
    "python {}",
    "wc -l {}",
    "mkdir {}",
    "make {}",
    "ls {}",
    "ls -{}",
    "rm {}",
    "git {}",
    "git add {}",
    "touch {}",
    "{}",
    "{} {}",
    "{} -{}",
    "{} --{}",
)
_SAID = (
    "Run {}",
    "Run the command {}",
    "Run the command `{}`",
    "Run `{}`",
    "run {}",
    "Please run {}",
    "Please run `{}`",
    "Execute {}",
    "Execute `{}`",
    "Run `{}` in the shell",
    "Use Bash to run: {}",
    "Use the Bash tool to run {}",
)
FAILURES = (
    "Error: {}",
    "<tool_use_error>{}</tool_use_error>",
    "File does not exist. {}",
    "No such file or directory: {}",
    "Command failed with exit code 1\n{}",
    "Permission denied. {}",
)
_NOTHING_PRINTED = "The command printed nothing."
_SILENT = ("", "(no output)", "(completed with no output)")


def _turn(user: str, name: str, arguments: Mapping[str, str], result: str, answer: str) -> ToolTurn:
    """Return a turn with one call of a known tool."""
    return ToolTurn(user, [(name, arguments)], [result], answer, [BY_NAME[name]])


def weather(random_: Random) -> ToolTurn:
    """The weather of a city."""
    city = random_.choice(facts.CITIES)
    sky = random_.choice(("sunny", "cloudy", "rainy", "windy", "snowy"))
    degrees = random_.randint(-9, 35)
    user = ask(
        random_,
        "What is the weather in {}?",
        "How is the weather in {} today?",
        "Weather in {}?",
        "What's the weather like in {}?",
        value=city,
    )
    result = random_.choice(
        (f"{sky}, {degrees} degrees", json.dumps({"condition": sky, "temperature": degrees}))
    )
    answer = f"The weather in {city} is {sky} with {degrees} degrees."
    return _turn(user, "get_weather", {"location": city}, result, answer)


def clock(random_: Random) -> ToolTurn:
    """The time in a city."""
    city = random_.choice(facts.CITIES)
    time = f"{random_.randint(0, 23):02d}:{random_.randint(0, 59):02d}"
    user = ask(
        random_,
        "What time is it in {}?",
        "Current time in {}?",
        "What's the time in {}?",
        value=city,
    )
    return _turn(user, "get_time", {"location": city}, time, f"The time in {city} is {time}.")


def calculation(random_: Random) -> ToolTurn:
    """A sum that is too large to know."""
    left, right = random_.randint(20, 999), random_.randint(20, 999)
    sign = random_.choice("+-*")
    task = f"{left} {sign} {right}"
    value = {"+": left + right, "-": left - right, "*": left * right}[sign]
    user = ask(random_, "What is {}?", "Compute {}.", "Calculate {}.", value=task)
    return _turn(user, "calculator", {"expression": task}, str(value), f"{task} = {value}")


def search(random_: Random) -> ToolTurn:
    """A search on the web."""
    query, found = words(random_, 1, 4), words(random_, 3, 8)
    name = random_.choice(("web_search", "WebSearch"))
    user = ask(
        random_, "Search the web for {}.", "Search for {}.", "Look up {} online.", value=query
    )
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
    user = ask(
        random_,
        "Read {}",
        "Read the file {}",
        "Show me {}",
        "Open {}",
        "What does {} contain?",
        value=path,
    )
    answer = f"The file {path} contains:\n" + "\n".join(lines)
    return _turn(user, "Read", {"file_path": path}, result, answer)


def write_file(random_: Random) -> ToolTurn:
    """A file with a given text."""
    path, text = file_path(random_), any_words(random_, 1, 5)
    if random_.random() < 0.15:
        text = random_.choice(("hello world", "hello", "Hello, world!"))
    user = random_.choice(
        (
            f"Write '{text}' to {path}",
            f"Create a file {path} with the content '{text}'",
            f"Create a file {path} with the content '{text}'",
            f"Create a file {path} with the text '{text}'",
            f"Create a file called {path} with '{text}' in it",
            f"Write a file {path} with the content '{text}'",
            f"Create {path} containing '{text}'",
            f"Save '{text}' in {path}",
            f'Create a file named {path} with the text "{text}"',
        )
    )
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
    user = random_.choice(
        (
            f"Replace '{old}' with '{new}' in {path}",
            f"Replace {old} with {new} in {path}",
            f"In {path}, change '{old}' to '{new}'",
            f"Change '{old}' to '{new}' in {path}",
        )
    )
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    result = random_.choice((f"The file {path} has been updated.", "ok"))
    return _turn(user, "Edit", arguments, result, f"I replaced '{old}' with '{new}' in {path}.")


def command(random_: Random) -> ToolTurn:
    """A shell command, described or spelt out."""
    line = random_.choice(list(_COMMANDS))
    user = random_.choice(_COMMANDS[line])
    if random_.random() < 0.5:
        line = random_.choice(_FREE_COMMANDS)
        if line.startswith("echo"):
            line = line.replace("{}", any_words(random_, 1, 4).replace("\n", " "))
        while "{}" in line:
            line = line.replace("{}", identifier(random_), 1)
        # Commands are copied as they are: their spelling is not to be disturbed.
        user = random_.choice(_SAID).replace("{}", line)
    elif random_.random() < 0.4:
        user = random_.choice(_SAID).replace("{}", line)
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
    user = ask(random_, "Search for {} in the code", "Where is {} used?", "grep {}", value=pattern)
    return _turn(user, "Grep", {"pattern": pattern}, found, f"I found {pattern} in:\n{found}")


def subagent(random_: Random) -> ToolTurn:
    """Work for another agent."""
    task = random_.choice(
        (
            f"find the capital of {random_.choice(list(facts.CAPITALS))}",
            f"tell me the capital of {random_.choice(list(facts.CAPITALS))}",
            f"say {any_words(random_, 1, 3)}",
            f"count to {random_.randint(3, 20)}",
            f"read {file_path(random_)}",
            f"run {identifier(random_)}",
            f"look for {any_words(random_, 1, 3)} in {file_path(random_)}",
            any_words(random_, 2, 6),
        )
    ).replace("\n", " ")
    user = random_.choice(
        (
            f"Use a subagent to {task}.",
            f"Use a subagent to {task}",
            f"Start a subagent to {task}.",
            f"Ask a subagent to {task}",
            f"Use the Agent tool to {task}",
            f"Use an agent to {task}.",
        )
    )
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
    user = random_.choice(
        (
            f"Use the {name} tool with {parameter} {value}",
            f"Call {name} with {parameter}={value}",
            f"Please call {name} with {parameter} set to {value}",
        )
    )
    result = words(random_, 1, 4)
    calls = [(name, {parameter: value})]
    return ToolTurn(user, calls, [result], f"The tool returned: {result}", [definition])


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


def tool_turn(random_: Random) -> ToolTurn:
    """Return one turn of a random kind that takes a tool."""
    return pick(random_, KINDS)(random_)
