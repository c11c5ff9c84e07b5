"""Long answers: counting, lists and stories.

Each answer contains a sequence (numbers, weekdays, months), so that greedy decoding keeps its place
and ends instead of repeating itself.
"""

from collections.abc import Mapping, Sequence

from bench.demo_model import facts
from bench.demo_model.chat import TurnMaker
from bench.demo_model.dialogue import Random, Turn, ask, pick

_LISTS: Mapping[str, Sequence[str]] = {
    "days of the week": facts.DAYS,
    "months of the year": facts.MONTHS,
    "planets": facts.PLANETS,
    "continents": facts.CONTINENTS,
    "colors of the rainbow": facts.RAINBOW,
    "seasons": facts.SEASONS,
}
_LONG_LISTS: Mapping[str, Sequence[str]] = {
    "animals": facts.ANIMALS,
    "fruits": facts.FRUITS,
    "countries": list(facts.CAPITALS),
    "cities": list(dict.fromkeys(facts.CITIES)),
    "names": facts.NAMES,
}
_HEROES = facts.listed("cat dog fox bird mouse bear rabbit robot")
_PLACES = facts.listed("forest village castle garden desert")
_EVENTS = (
    "{0} met a friendly owl and they talked for a long time.",
    "{0} found a shiny stone beside the road.",
    "{0} helped an old turtle to cross the river.",
    "{0} climbed a hill and looked at the sea.",
    "it rained, so {0} stayed at home and read a book.",
    "{0} baked a cake and shared it with the neighbours.",
    "{0} walked to the market and bought some apples.",
    "{0} slept under a big tree until the evening.",
    "{0} learned a new song from the birds.",
    "{0} painted a picture of the moon.",
    "{0} built a small boat out of wood.",
    "{0} planted a flower in front of the house.",
)


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
    question = ask(
        random_,
        "Count to {}",
        "Count to {}",
        "Count from 1 to {}",
        "Please count up to {}",
        "List the numbers from 1 to {}",
        "Write the numbers from 1 to {}",
        value=f"{limit}{suffix}",
    ) + random_.choice(("", "."))
    answer = separator.join(str(number) for number in range(1, limit + 1)) + ending
    return Turn(question, answer, f"The user wants the numbers from 1 to {limit}.")


def counting_down(random_: Random) -> Turn:
    """Numbers from a limit down to one."""
    limit = random_.choice((3, 5, 10, 10, 20))
    question = ask(random_, "Count down from {}.", "Count backwards from {}.", value=str(limit))
    answer = ", ".join(str(number) for number in range(limit, 0, -1)) + "."
    return Turn(question, answer, f"The user wants the numbers from {limit} down to 1.")


def enumeration(random_: Random) -> Turn:
    """A well-known list."""
    kind = random_.choice(list(_LISTS))
    question = ask(
        random_,
        "List the {}.",
        "What are the {}?",
        "Name all {}.",
        "Tell me the {}.",
        value=kind,
    )
    return Turn(question, numbered(_LISTS[kind]), f"The user wants the list of {kind}.")


def long_list(random_: Random) -> Turn:
    """A numbered list of a wanted length, or as long as the model can make it."""
    kind = random_.choice(list(_LONG_LISTS))
    items = _LONG_LISTS[kind]
    if random_.random() < 0.4:
        question = ask(
            random_,
            "Write a long list of {}.",
            "Make a long list of {}.",
            "List many {}.",
            "Give me as many {} as you can.",
            value=kind,
        )
        return Turn(question, numbered(items), f"The user wants a long list of {kind}.")
    size = random_.choice((3, 5, 5, 10, 10, 15, 20))
    size = min(size, len(items))
    question = ask(
        random_, f"List {size} {{}}.", f"Name {size} {{}}.", f"Give me {size} {{}}.", value=kind
    )
    return Turn(question, numbered(items[:size]), f"The user wants {size} {kind}.")


def multiplication_table(random_: Random) -> Turn:
    """The multiplication table of one number."""
    factor = random_.randint(1, 10)
    question = ask(
        random_,
        "Write the multiplication table of {}.",
        "Multiplication table of {}",
        "Show me the {} times table.",
        value=str(factor),
    )
    lines = [f"{number} * {factor} = {number * factor}" for number in range(1, 11)]
    return Turn(question, "\n".join(lines), f"The user wants the table of {factor}.")


def story(random_: Random) -> Turn:
    """A story that takes a week, or a year when a long one is wanted."""
    name, hero = random_.choice(facts.NAMES), random_.choice(_HEROES)
    place = random_.choice(_PLACES)
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
    clock = (
        [f"In {month}" for month in facts.MONTHS] if long else [f"On {day}" for day in facts.DAYS]
    )
    lines = [f"Once upon a time there was a {hero} named {name} who lived in a {place}."]
    # Each moment has two or three usual events, so that stories differ but stay learnable.
    for index, moment in enumerate(clock):
        event = _EVENTS[(index + 4 * random_.randrange(2)) % len(_EVENTS)]
        lines.append(f"{moment}, {event.format(name)}")
    lines.append(f"After that, {name} was happy and slept well. The end.")
    separator = "\n\n" if long else " "
    return Turn(question, separator.join(lines), f"The user wants a story about a {hero}.")


KINDS: Mapping[TurnMaker, float] = {
    counting: 9,
    counting_down: 1.5,
    enumeration: 4,
    long_list: 4,
    multiplication_table: 2,
    story: 4,
}


def long_answer(random_: Random) -> Turn:
    """Return one turn with a long answer."""
    return pick(random_, KINDS)(random_)
