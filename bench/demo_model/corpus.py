"""Deterministic generator of synthetic conversations."""

from collections.abc import Callable, Sequence

from bench.demo_model.chat import long_answer, question_and_answer
from bench.demo_model.dialogue import (
    Random,
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
from bench.demo_model.tools import Tool, choose_tools, out_of_reach, tool_turn

Conversation = tuple[list[Message], list[Tool] | None]


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str, thought: str = "") -> Message:
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    return message


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

    def _turns(self, turns: list[Turn], *, thinks: bool) -> list[Message]:
        messages = []
        for turn in turns:
            messages.append(_user(turn.user))
            messages.append(_assistant(turn.answer, turn.thought if thinks else ""))
        return messages

    def _chat(self, *, thinks: bool) -> Conversation:
        """A few unrelated questions, sometimes with tools that are useless for them."""
        count = self._random.choice((1, 2, 3, 4, 5))
        turns = [question_and_answer(self._random) for _ in range(count)]
        tools = choose_tools(self._random, []) if self._random.random() < 0.15 else None
        return self._turns(turns, thinks=thinks), tools or None

    def _long(self, *, thinks: bool) -> Conversation:
        """One long answer, sometimes between short ones."""
        turns = [long_answer(self._random)]
        if self._random.random() < 0.3:
            turns.insert(self._random.randint(0, 1), question_and_answer(self._random))
        tools = choose_tools(self._random, []) if self._random.random() < 0.15 else None
        return self._turns(turns, thinks=thinks), tools or None

    def _remembering(self, *, thinks: bool) -> Conversation:
        """The user states a fact and asks for it later."""
        random_ = self._random
        memory = random_.choice(tables()["memories"])
        values = cities() if memory["values"] == "cities" else listed(memory["values"])
        value = random_.choice(values)
        told = random_.choice(("", "", "Hi! ", "Hello, ")) + memory["told"].format(value)
        greeting = "Okay, I will remember that."
        if "name" in memory["asked"]:
            greeting = f"Nice to meet you, {value}!"
        messages = [_user(told), _assistant(greeting)]
        between = [question_and_answer(random_) for _ in range(random_.choice((0, 0, 1, 1, 2)))]
        messages += self._turns(between, thinks=False)
        thought = "The user told me this earlier." if thinks else ""
        messages.append(_user(vary(random_, memory["asked"])))
        messages.append(_assistant(memory["answer"].format(value), thought))
        return messages, None

    def _with_tools(self, *, thinks: bool) -> Conversation:
        """Tool calls, their results and the model's answer about them."""
        random_ = self._random
        turns = [tool_turn(random_) for _ in range(random_.choice((1, 2, 2, 3)))]
        needed: dict[str, Tool] = {}
        messages: list[Message] = []
        for turn in turns:
            needed[turn.name] = turn.tool
            messages += turn.messages(thinks=thinks)
        return messages, choose_tools(random_, list(needed.values()))

    def _without_tools(self, *, thinks: bool) -> Conversation:
        """A question that needs a tool, when none is offered."""
        user, answer = out_of_reach(self._random, tuple(facts("out_of_reach")))
        return [_user(user), _assistant(answer, "I have no tool." if thinks else "")], None

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
