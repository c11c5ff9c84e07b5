"""Questions that take a tool call: each function makes one turn of one kind."""

import json
from collections.abc import Callable, Mapping

from bench.demo_model import facts
from bench.demo_model.dialogue import Random, ToolTurn, ask, file_path, identifier, pick, words
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
}
_FREE_COMMANDS = ("echo {}", "echo {}", "cat {}", "python {}", "wc -l {}", "mkdir {}", "make {}")


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
        result = "\n".join(f"     {number}\u2192{line}" for number, line in enumerate(lines, 1))
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
    path, text = file_path(random_), words(random_, 1, 5)
    user = random_.choice(
        (
            f"Write '{text}' to {path}",
            f"Create a file {path} with the content '{text}'",
            f"Create {path} containing '{text}'",
            f"Save '{text}' in {path}",
            f'Create a file named {path} with the text "{text}"',
        )
    )
    result = random_.choice(
        (f"File created successfully at: {path}", "ok", "The file was written.")
    )
    arguments = {"file_path": path, "content": text}
    return _turn(user, "Write", arguments, result, f"I wrote the file {path}.")


def edit_file(random_: Random) -> ToolTurn:
    """A replacement in a file."""
    path = file_path(random_)
    old, new = random_.sample(facts.WORDS, 2)
    user = random_.choice(
        (f"Replace '{old}' with '{new}' in {path}", f"In {path}, change '{old}' to '{new}'")
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
            line = line.replace("{}", words(random_, 1, 3))
        line = line.replace("{}", identifier(random_))
        user = ask(
            random_,
            "Run {}",
            "Run the command {}",
            "Execute `{}`",
            "Run `{}` in the shell",
            "Use Bash to run: {}",
            value=line,
        )
    output = "\n".join(words(random_, 1, 3) for _ in range(random_.randint(1, 3)))
    return _turn(user, "Bash", {"command": line}, output, f"The command printed:\n{output}")


def search_code(random_: Random) -> ToolTurn:
    """A search in files."""
    pattern = identifier(random_)
    found = "\n".join(file_path(random_) for _ in range(random_.randint(1, 3)))
    user = ask(random_, "Search for {} in the code", "Where is {} used?", "grep {}", value=pattern)
    return _turn(user, "Grep", {"pattern": pattern}, found, f"I found {pattern} in:\n{found}")


def unheard_of(random_: Random) -> ToolTurn:
    """A tool whose name has to be copied."""
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
    unheard_of: 2,
}


def tool_turn(random_: Random) -> ToolTurn:
    """Return one turn of a random kind that takes a tool."""
    return pick(random_, KINDS)(random_)
