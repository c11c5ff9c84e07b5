"""Generates synthetic conversations by a seed, and packs them into batches of tokens."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

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
from bench.demo_model.noise import standard_library_texts, tool_definitions
from bench.demo_model.render import SPECIAL_TOKENS, Message, rendered, split_answers
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


_NOISE_CHARS = 2_000_000
_EXERCISES = 0.02
_TOOLS_OPENING = "<|im_start|>system\n# Tools"
_SEAMS = (
    "<|im_end|>\n<|im_start|>system\n",
    "<|im_end|>\n<|im_start|>user\n<system-reminder>\n",
    "\n</system-reminder>\n<system-reminder>\n",
    "\n\n",
    "\n\n# ",
)


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and the positions whose successor is learned.

    Attributes:
        inputs: Tokens, one row per sequence.
        positions: Indices into the flattened inputs.
        targets: The token that follows at each of the positions.
    """

    inputs: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    targets: npt.NDArray[np.int32]


class Strip:
    """A growing strip of tokens, each marked as learned or given."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.tokens: list[int] = []
        self.learned: list[bool] = []

    def add(self, tokens: Iterable[int], *, learned: bool = False) -> None:
        """Append `tokens`."""
        before = len(self.tokens)
        self.tokens.extend(tokens)
        self.learned.extend([learned] * (len(self.tokens) - before))

    def cut(self, length: int) -> tuple[list[int], list[bool]]:
        """Take the first `length` tokens off the strip."""
        taken = self.tokens[:length], self.learned[:length]
        del self.tokens[:length], self.learned[:length]
        return taken


class BatchStream:
    """An endless, seeded stream of batches."""

    def __init__(self, tokenizer: Tokenizer, seed: int, *, reminders: float = 0.05) -> None:
        """Draw conversations, noise and copy exercises from `seed`.

        Args:
            tokenizer: Turns text into tokens.
            seed: Seed of everything.
            reminders: Share of the user's messages that open with a reminder.
        """
        texts = standard_library_texts(_NOISE_CHARS, seed)
        self.texts = texts
        self._tokenizer = tokenizer
        self._random = random.Random(f"batches {seed}")
        self._corpus = Corpus(random.Random(f"corpus {seed}"), texts, reminders)
        self._noise = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        self._vocab = range(len(SPECIAL_TOKENS), tokenizer.get_vocab_size())
        self._strip = Strip()

    def conversations(self, rows: int, length: int) -> Batch:
        """Return conversations, packed without gaps, with noise and exercises between them."""
        while len(self._strip.tokens) < rows * (length + 1):
            if self._random.random() < _EXERCISES:
                self._add_copy_exercise(self._strip)
                continue
            if self._random.random() < 0.2:
                self._strip.add(self.encode("<|im_start|>system\n"))
                self._strip.add(self.some_noise(self._random.randint(10, 150)))
                self._strip.add(self.encode("<|im_end|>\n"))
            self.add_conversation(self._strip)
        return batch_of([self._strip.cut(length + 1) for _ in range(rows)])

    def long_prompts(self, rows: int, length: int) -> Batch:
        """Return rows that begin with a long text unrelated to what follows."""
        cuts = []
        for _ in range(rows):
            strip = Strip()
            strip.add(self.encode("<|im_start|>system\n"))
            # The square root makes long prefixes the rule.
            share = self._random.random() ** 0.5
            strip.add(self.some_noise(int(share * (length - 500))))
            strip.add(self.encode("<|im_end|>\n"))
            while len(strip.tokens) <= length:
                self.add_conversation(strip)
            cuts.append(strip.cut(length + 1))
        return batch_of(cuts)

    def openings_of_prompts(self, rows: int, length: int) -> npt.NDArray[np.int32]:
        """Return the first tokens of long prompts of several kinds."""
        random_ = self._random
        openings = []
        for _ in range(rows):
            roll = random_.random()
            if roll < 0.25:
                tokens = self.encode("\n".join(tool_definitions(random_, self.texts)))
            elif roll < 0.35:
                strip = Strip()
                while len(strip.tokens) < length:
                    self.add_conversation(strip)
                tokens = strip.tokens
            else:
                tokens = self.encode("<|im_start|>system\n")
                while len(tokens) < length:
                    tokens += self.some_noise(random_.randint(50, 800))
                    tokens += self.encode(random_.choice(_SEAMS))
            tokens += self.some_noise(max(0, length - len(tokens)))
            openings.append(tokens[:length])
        return np.array(openings, dtype=np.int32)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`."""
        tokens: list[int] = self._tokenizer.encode(text).ids
        return tokens

    def some_noise(self, length: int) -> list[int]:
        """Return `length` tokens of irrelevant text."""
        tokens: list[int] = []
        while len(tokens) < length:
            text = self._random.choice(self._noise)
            start = self._random.randrange(len(text))
            tokens += text[start : start + length - len(tokens)]
        return tokens

    def add_conversation(self, strip: Strip) -> None:
        """Add a conversation of any kind."""
        messages, tools = self._corpus.conversation()
        for piece, learned in split_answers(rendered(messages, tools)):
            text = piece
            # Definitions of tools are long and teach nothing: the names that matter are
            # repeated in front of the question, and real definitions are out of sight for
            # most layers. A few are kept so that they are not a surprise.
            if text.startswith(_TOOLS_OPENING) and self._random.random() < 0.93:
                text = text[text.index("<|im_end|>\n") + len("<|im_end|>\n") :]
            strip.add(self.encode(text), learned=learned)

    def _add_copy_exercise(self, strip: Strip) -> None:
        """Add random tokens that are repeated once or twice, in whole or from some point on."""
        random_ = self._random
        size = random_.randint(4, 50)
        phrase = random_.choices(self._vocab, k=size)
        if random_.random() < 0.5:
            # Few different tokens: one predecessor is then not enough to find the place.
            phrase = random_.choices(phrase[: max(4, size // 3)], k=size)
        strip.add(phrase)
        for _ in range(random_.randint(1, 2)):
            strip.add(random_.choices(self._vocab, k=random_.randint(0, 40)))
            start = 0 if random_.random() < 0.5 else random_.randrange(size - 3)
            strip.add(phrase[start : start + 2])
            strip.add(phrase[start + 2 :], learned=True)


def batch_of(cuts: Sequence[tuple[list[int], list[bool]]]) -> Batch:
    """Return rows of equal length as a batch; their last tokens are targets only."""
    tokens = np.array([cut[0] for cut in cuts], dtype=np.int32)
    learned = np.array([cut[1] for cut in cuts], dtype=bool)
    positions = np.flatnonzero(learned[:, 1:].reshape(-1)).astype(np.int32)
    targets = tokens[:, 1:].reshape(-1)[positions]
    return Batch(tokens[:, :-1], positions, targets)
