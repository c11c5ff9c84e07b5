"""Questions and answers without tools: each function makes one turn of one kind.

Long answers contain a sequence (numbers, weekdays, months), so that greedy decoding keeps its place
and ends instead of repeating itself.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.demo_model.dialogue import (
    Random,
    Turn,
    ask,
    cities,
    drawn_turn,
    facts,
    listed,
    phrases,
    pick,
)

TurnMaker = Callable[[Random], Turn]


def arithmetic(random_: Random) -> Turn:
    """A sum, difference or product of numbers up to ten."""
    sign = random_.choice("++-*")
    # The smaller of two draws: people ask for 2 + 2 more often than for 9 + 8.
    left, right = (min(random_.randint(0, 10), random_.randint(0, 10)) for _ in range(2))
    if sign == "-":
        left, right = max(left, right), min(left, right)
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    spoken = {"+": "plus", "-": "minus", "*": "times"}[sign]
    task = f"{left} {sign} {right}"
    asked = random_.choice((task, task, f"{left}{sign}{right}", f"{left} {spoken} {right}"))
    question = random_.choice(phrases("arithmetic")).replace("{}", asked)
    return Turn(question, f"{task} = {result}", f"The user wants {task}. The result is {result}.")


def comparison(random_: Random) -> Turn:
    """Which of two numbers is larger."""
    left, right = random_.sample(range(100), 2)
    if random_.random() < 0.5:
        question = ask(
            random_, f"Which is larger, {left} or {right}?", f"{left} or {right}: which is bigger?"
        )
        return Turn(question, f"{max(left, right)} is larger.", "The user compares numbers.")
    question = ask(random_, f"Which is smaller, {left} or {right}?")
    return Turn(question, f"{min(left, right)} is smaller.", "The user compares numbers.")


def neighbour(random_: Random) -> Turn:
    """The day, month or number before or after another."""
    numbers = [str(number) for number in range(1, 30)]
    unit, series = random_.choice(
        (("day", listed("days")), ("month", listed("months")), ("number", numbers))
    )
    where, step = random_.choice((("after", 1), ("before", -1)))
    index = random_.randrange(len(series))
    if unit == "number":
        index = random_.randrange(1, len(series) - 1)
    item, result = series[index], series[(index + step) % len(series)]
    question = ask(
        random_,
        f"What {unit} comes {where} {item}?",
        f"Which {unit} is {where} {item}?",
        f"What comes {where} {item}?",
    )
    return Turn(
        question, f"{result} comes {where} {item}.", f"The user asks what is {where} {item}."
    )


KINDS: Mapping[TurnMaker, float] = {
    partial(drawn_turn, "small_talk"): 6,
    partial(drawn_turn, "identity"): 4,
    partial(drawn_turn, "capital"): 12,
    partial(drawn_turn, "colour"): 4,
    partial(drawn_turn, "opposite"): 4,
    partial(drawn_turn, "animal"): 4,
    partial(drawn_turn, "definition"): 6,
    partial(drawn_turn, "general"): 9,
    partial(drawn_turn, "translation"): 4,
    arithmetic: 14,
    comparison: 3,
    neighbour: 6,
    partial(drawn_turn, "repeat"): 6,
    partial(drawn_turn, "record"): 2,
    partial(drawn_turn, "hello_world"): 1.2,
    partial(drawn_turn, "program"): 1.8,
    partial(drawn_turn, "unknown"): 5,
}


def question_and_answer(random_: Random) -> Turn:
    """Return one turn of a random kind."""
    return pick(random_, KINDS)(random_)


# --- long answers -----------------------------------------------------------------------------


def numbered(items: Sequence[str]) -> str:
    """Return `items` as a numbered list."""
    return "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))


def counting(random_: Random) -> Turn:
    """Numbers from one up to a limit, in a row or one per line."""
    limit = random_.choice((3, 5, 5, 7, 10, 10, 10, 12, 15, 20, 20, 25, 30, 40, 50, 50, 100))
    separator, ending = ", ", "."
    suffix = ""
    if random_.random() < 0.3:
        separator, ending, suffix = "\n", "", ", one number per line"
    question = ask(random_, *phrases("counting"), value=f"{limit}{suffix}")
    question += random_.choice(("", "."))
    answer = separator.join(str(number) for number in range(1, limit + 1)) + ending
    return Turn(question, answer, f"The user wants the numbers from 1 to {limit}.")


def counting_down(random_: Random) -> Turn:
    """Numbers from a limit down to one."""
    limit = random_.choice((3, 5, 10, 10, 20))
    question = ask(random_, *phrases("counting_down"), value=str(limit))
    answer = ", ".join(str(number) for number in range(limit, 0, -1)) + "."
    return Turn(question, answer, f"The user wants the numbers from {limit} down to 1.")


def enumeration(random_: Random) -> Turn:
    """A well-known list."""
    lists = {
        "days of the week": "days",
        "months of the year": "months",
        "planets": "planets",
        "continents": "continents",
        "colors of the rainbow": "rainbow",
        "seasons": "seasons",
    }
    kind = random_.choice(list(lists))
    question = ask(random_, *phrases("enumeration"), value=kind)
    return Turn(question, numbered(listed(lists[kind])), f"The user wants the list of {kind}.")


def long_list(random_: Random) -> Turn:
    """A numbered list of a wanted length, or as long as the model can make it."""
    lists = {
        "animals": listed("animals"),
        "fruits": listed("fruits"),
        "countries": list(facts("capitals")),
        "cities": list(dict.fromkeys(cities())),
        "names": listed("names"),
    }
    kind = random_.choice(list(lists))
    items = lists[kind]
    if random_.random() < 0.4:
        question = ask(random_, *phrases("long_list"), value=kind)
        return Turn(question, numbered(items), f"The user wants a long list of {kind}.")
    size = random_.choice((3, 5, 5, 10, 10, 15, 20))
    size = min(size, len(items))
    question = ask(random_, *phrases("short_list"), value=f"{size} {kind}")
    return Turn(question, numbered(items[:size]), f"The user wants {size} {kind}.")


def multiplication_table(random_: Random) -> Turn:
    """The multiplication table of one number."""
    factor = random_.randint(1, 10)
    question = ask(random_, *phrases("multiplication_table"), value=str(factor))
    lines = [f"{number} * {factor} = {number * factor}" for number in range(1, 11)]
    return Turn(question, "\n".join(lines), f"The user wants the table of {factor}.")


def story(random_: Random) -> Turn:
    """A story that takes a week, or a year when a long one is wanted."""
    name, hero = random_.choice(listed("names")), random_.choice(listed("heroes"))
    place = random_.choice(listed("places"))
    long = random_.random() < 0.4
    size = random_.choice(("long ", "very long ") if long else ("", "", "short "))
    if random_.random() < 0.5:
        name, hero, place = "Max", "fox", "forest"
        question = ask(random_, f"Tell me a {size}story.", f"Write a {size}story.")
    else:
        question = ask(
            random_,
            f"Tell me a {size}story about a {hero} named {name}.",
            f"Write a {size}story about a {hero} called {name}.",
            f"Tell me a {size}story about {name} the {hero}.",
        )
    on, moments = ("In", listed("months")) if long else ("On", listed("days"))
    lines = [f"Once upon a time there was a {hero} named {name} who lived in a {place}."]
    # Each moment has two or three usual events, so that stories differ but stay learnable.
    events = listed("events")
    for index, moment in enumerate(moments):
        event = events[(index + 4 * random_.randrange(2)) % len(events)]
        lines.append(f"{on} {moment}, {event.format(name)}")
    lines.append(f"After that, {name} was happy and slept well. The end.")
    separator = "\n\n" if long else " "
    return Turn(question, separator.join(lines), f"The user wants a story about a {hero}.")


LONG_KINDS: Mapping[TurnMaker, float] = {
    counting: 9,
    counting_down: 1.5,
    enumeration: 4,
    long_list: 4,
    multiplication_table: 2,
    story: 4,
}


def long_answer(random_: Random) -> Turn:
    """Return one turn with a long answer."""
    return pick(random_, LONG_KINDS)(random_)
