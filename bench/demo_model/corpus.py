"""Deterministic generator of synthetic conversations."""

from collections.abc import Callable, Sequence

from bench.demo_model.chat import long_answer, question_and_answer
from bench.demo_model.dialogue import (
    Random,
    Tool,
    Turn,
    cities,
    facts,
    listed,
    pick,
    tables,
    vary,
    words,
)
from bench.demo_model.render import Message
from bench.demo_model.tools import choose_tools, out_of_reach, tool_turn

Conversation = tuple[list[Message], list[Tool] | None]


def _messages(turns: Sequence[Turn], *, thinks: bool) -> list[Message]:
    return [message for turn in turns for message in turn.messages(thinks=thinks)]


class Corpus:
    """An endless stream of conversations that depends on its random source only."""

    def __init__(self, random_: Random, texts: Sequence[str] = (), reminders: float = 0.05) -> None:
        """Draw every choice from `random_`, and reminders from `texts`.

        Args:
            random_: Source of all choices.
            texts: Texts that reminders quote.
            reminders: Share of the user's messages that begin with a reminder.
        """
        self._random = random_
        self._reminders = reminders
        self._texts = texts

    def conversation(self) -> Conversation:
        """Return the messages of one conversation and the tools on offer, if any."""
        random_ = self._random
        thinks = random_.random() < 0.3
        makers: dict[Callable[..., Conversation], float] = {
            self._chat: 64,
            self._remembering: 6,
            self._long: 5,
            self._with_tools: 9,
            self._without_tools: 2,
        }
        messages, tools = pick(random_, makers)(thinks=thinks)
        if random_.random() < 0.12:
            messages.insert(0, {"role": "system", "content": self._system_text()})
        for message in messages:
            if message["role"] == "user" and random_.random() < self._reminders:
                message["content"] = f"{self._reminder()}\n{message['content']}"
        return messages, tools

    def _chat(self, *, thinks: bool) -> Conversation:
        """A few unrelated questions, sometimes with tools that are useless for them."""
        count = self._random.choice((1, 2, 3, 4, 5))
        turns = [question_and_answer(self._random) for _ in range(count)]
        tools = choose_tools(self._random, []) if self._random.random() < 0.15 else None
        return _messages(turns, thinks=thinks), tools or None

    def _long(self, *, thinks: bool) -> Conversation:
        """One long answer, sometimes between short ones."""
        turns = [long_answer(self._random)]
        if self._random.random() < 0.3:
            turns.insert(self._random.randint(0, 1), question_and_answer(self._random))
        tools = choose_tools(self._random, []) if self._random.random() < 0.15 else None
        return _messages(turns, thinks=thinks), tools or None

    def _remembering(self, *, thinks: bool) -> Conversation:
        """The user states a fact and asks for it later."""
        random_ = self._random
        memory = random_.choice(tables()["memories"])
        values = cities() if memory["values"] == "cities" else listed(memory["values"])
        value = random_.choice(values)
        is_name = "name" in memory["asked"]
        first = Turn(
            user=random_.choice(("", "", "Hi! ", "Hello, ")) + memory["told"].format(value),
            answer=f"Nice to meet you, {value}!" if is_name else "Okay, I will remember that.",
        )
        between = [question_and_answer(random_) for _ in range(random_.choice((0, 0, 1, 1, 2)))]
        last = Turn(
            user=vary(random_, memory["asked"]),
            answer=memory["answer"].format(value),
            thought="The user told me this earlier.",
        )
        messages = _messages([first, *between], thinks=False)
        return messages + last.messages(thinks=thinks), None

    def _with_tools(self, *, thinks: bool) -> Conversation:
        """Tool calls, their results and the model's answer about them."""
        random_ = self._random
        turns = [tool_turn(random_) for _ in range(random_.choice((1, 2, 2, 3)))]
        needed = {turn.name: turn.tool for turn in turns if turn.tool}
        return _messages(turns, thinks=thinks), choose_tools(random_, list(needed.values()))

    def _without_tools(self, *, thinks: bool) -> Conversation:
        """A question that needs a tool, when none is offered."""
        turn = out_of_reach(self._random, tuple(facts("out_of_reach")))
        return turn.messages(thinks=thinks), None

    def _system_text(self) -> str:
        text = self._random.choice(listed("system"))
        if self._random.random() < 0.3:
            text += " " + words(self._random, 5, 20)
        return text

    def _reminder(self) -> str:
        """Return text that a client inserts before a question on its own."""
        text = words(self._random, 5, 25)
        if self._texts:
            source = self._random.choice(self._texts)
            start = self._random.randrange(len(source))
            text = source[start : start + self._random.randint(50, 800)]
        gap = self._random.choice(("", "\n"))
        return f"<system-reminder>\n{text}\n</system-reminder>{gap}"
