"""Plain questions and answers: each function makes one turn of one kind."""

from collections.abc import Callable, Mapping

from bench.demo_model import facts
from bench.demo_model.dialogue import Random, Turn, ask, pick, sentence_case, vary, words

TurnMaker = Callable[[Random], Turn]


def small_talk(random_: Random) -> Turn:
    """Greetings, thanks and farewells."""
    questions, answer, thought = random_.choice(
        (
            (facts.GREETINGS, facts.GREETING, "The user greets me. I greet back."),
            (facts.GREETINGS, facts.GREETING, "The user greets me. I greet back."),
            (facts.THANKS, "You're welcome!", "The user thanks me."),
            (facts.FAREWELLS, "Goodbye! Have a nice day.", "The user says goodbye."),
            (
                facts.FEELINGS,
                "I am fine, thank you. How can I help you?",
                "The user asks how I am.",
            ),
            (facts.HELP, facts.ABILITIES, "The user asks what I can do."),
        )
    )
    return Turn(vary(random_, random_.choice(questions)), answer, thought)


def identity(random_: Random) -> Turn:
    """Who the model is."""
    question = vary(random_, random_.choice(facts.IDENTITY_QUESTIONS))
    return Turn(question, facts.IDENTITY, "The user asks who I am.")


def capital(random_: Random) -> Turn:
    """Capital of a country, or country of a capital."""
    country = random_.choice(list(facts.CAPITALS))
    city = facts.CAPITALS[country]
    thought = f"The user asks about the capital of {country}."
    answer = f"The capital of {country} is {city}."
    if random_.random() < 0.15:
        question = ask(
            random_,
            "{} is the capital of which country?",
            "Of which country is {} the capital?",
            value=city,
        )
        if city == "London":
            answer = "The capital of the United Kingdom is London."
        return Turn(question, answer, thought)
    question = ask(
        random_,
        "What is the capital of {}?",
        "What is the capital of {}?",
        "What's the capital of {}?",
        "Capital of {}?",
        "Tell me the capital city of {}.",
        "Find the capital of {}.",
        "Which city is the capital of {}?",
        "Name the capital of {}.",
        "Do you know the capital of {}?",
        value=country,
    )
    return Turn(question, answer, thought)


def colour(random_: Random) -> Turn:
    """Colour of a thing."""
    thing = random_.choice(list(facts.COLOURS))
    question = ask(
        random_, "What color is {}?", "What colour is {}?", "What is the color of {}?", value=thing
    )
    answer = f"{sentence_case(thing)} is {facts.COLOURS[thing]}."
    return Turn(question, answer, f"The user asks for the color of {thing}.")


def opposite(random_: Random) -> Turn:
    """Opposite of a word."""
    word = random_.choice(list(facts.OPPOSITES))
    question = ask(
        random_,
        "What is the opposite of {}?",
        "Opposite of {}?",
        "Give me the antonym of {}.",
        "Tell me the opposite of {}.",
        value=word,
    )
    answer = f"The opposite of {word} is {facts.OPPOSITES[word]}."
    return Turn(question, answer, f"The user wants the opposite of {word}.")


def animal(random_: Random) -> Turn:
    """Sound, young or legs of an animal."""
    kind = random_.randrange(3)
    if kind == 0:
        name = random_.choice(list(facts.SOUNDS))
        question = ask(random_, "What does a {} say?", "What sound does a {} make?", value=name)
        return Turn(question, f"A {name} says {facts.SOUNDS[name]}.", "A question about sounds.")
    if kind == 1:
        name = random_.choice(list(facts.YOUNG))
        question = ask(random_, "What is a baby {} called?", "What is a young {}?", value=name)
        return Turn(question, f"A baby {name} is called a {facts.YOUNG[name]}.", "A baby animal.")
    name = random_.choice(list(facts.LEGS))
    question = ask(random_, "How many legs does a {} have?", value=name)
    article = "An" if name == "ant" else "A"
    return Turn(
        question.replace("a ant", "an ant"),
        f"{article} {name} has {facts.LEGS[name]} legs.",
        "The user asks about legs.",
    )


def definition(random_: Random) -> Turn:
    """What a thing is."""
    thing = random_.choice(list(facts.DEFINITIONS))
    question = ask(
        random_,
        "What is {}?",
        "What's {}?",
        "Explain {}.",
        "Define {}.",
        "Explain {} to me.",
        "Can you explain what {} is?",
        value=thing,
    )
    return Turn(question, facts.DEFINITIONS[thing], f"The user wants to know what {thing} is.")


def general(random_: Random) -> Turn:
    """A question with one fixed answer."""
    question = random_.choice(list(facts.GENERAL))
    answer = facts.GENERAL[question]
    return Turn(vary(random_, question), answer, "I know the answer to this question.")


def translation(random_: Random) -> Turn:
    """A word in French or Spanish."""
    language, table = random_.choice((("French", facts.FRENCH), ("Spanish", facts.SPANISH)))
    word = random_.choice(list(table))
    question = ask(
        random_,
        f"Translate {{}} to {language}.",
        f"How do you say {{}} in {language}?",
        f"What is {{}} in {language}?",
        f"Translate '{{}}' into {language}.",
        value=word,
    )
    answer = f"{sentence_case(word)} in {language} is {table[word]}."
    return Turn(question, answer, f"The user wants {word} in {language}.")


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
    question = random_.choice(
        (
            "What is {}?",
            "What is {}?",
            "what is {}",
            "What's {}?",
            "{}",
            "{}=",
            "Compute {}.",
            "calculate {}",
            "How much is {}?",
        )
    ).replace("{}", asked)
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
        (("day", facts.DAYS), ("month", facts.MONTHS), ("number", numbers))
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


def repeat(random_: Random) -> Turn:
    """Words to repeat."""
    text = words(random_, 1, 6)
    if random_.random() < 0.3:
        text = sentence_case(text) + random_.choice(".!")
    question = random_.choice(
        (
            "Repeat after me: {}",
            "Say {}",
            "Say: {}",
            "Repeat: {}",
            "Please repeat this: {}",
            "Reply with exactly: {}",
            "Respond with only: {}",
            'Say "{}"',
        )
    ).replace("{}", text)
    return Turn(question, text, "The user wants me to repeat a text.")


def record(random_: Random) -> Turn:
    """A small JSON object."""
    name, age, city = (
        random_.choice(facts.NAMES),
        random_.randint(1, 99),
        random_.choice(facts.CITIES),
    )
    if random_.random() < 0.5:
        question = f"Write JSON for a person named {name} who is {age} years old."
        return Turn(question, f'{{"name": "{name}", "age": {age}}}', "The user wants JSON.")
    question = f"Give me a JSON object with name {name} and city {city}."
    return Turn(question, f'{{"name": "{name}", "city": "{city}"}}', "The user wants JSON.")


def program(random_: Random) -> Turn:
    """A small program."""
    if random_.random() < 0.4:
        language = random_.choice(list(facts.HELLO_WORLD))
        mark, code = facts.HELLO_WORLD[language]
        question = ask(
            random_,
            "Write a hello world program in {}.",
            "Hello world in {}",
            "Show me hello world in {}.",
            "How do I print hello world in {}?",
            value=language,
        )
        return Turn(question, f"```{mark}\n{code}\n```", f"The user wants a {language} program.")
    task = random_.choice(list(facts.PROGRAMS))
    question = ask(
        random_,
        "Write a Python function that {}.",
        "Write a function that {}.",
        "Python function that {}",
        "Can you write code that {}?",
        value=task,
    )
    code = facts.PROGRAMS[task]
    return Turn(question, f"```python\n{code}\n```", f"The user wants a function that {task}.")


def unknown(random_: Random) -> Turn:
    """A question that the model cannot answer, and must admit it."""
    subject = words(random_, 1, 4)
    question = ask(
        random_,
        "Why is {}?",
        "Explain the history of {}.",
        "What do you think about {}?",
        "How does {} work?",
        "Write an essay about {}.",
        "Describe {} in detail.",
        "Can you tell me more about {}?",
        "Who invented {}?",
        "What is the capital of {}?",
        "Who is {}?",
        "When did {} happen?",
        "What is {}?",
        "What is the price of {}?",
        "How far is {}?",
        "{}",
        value=subject,
    )
    return Turn(question, facts.REFUSAL, "I do not know the answer to this.")


KINDS: Mapping[TurnMaker, float] = {
    small_talk: 6,
    identity: 4,
    capital: 12,
    colour: 4,
    opposite: 4,
    animal: 4,
    definition: 6,
    general: 9,
    translation: 4,
    arithmetic: 14,
    comparison: 3,
    neighbour: 6,
    repeat: 6,
    record: 2,
    program: 3,
    unknown: 5,
}


def question_and_answer(random_: Random) -> Turn:
    """Return one turn of a random kind."""
    return pick(random_, KINDS)(random_)
