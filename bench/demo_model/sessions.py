"""Rows of a coding agent's session: questions and tool calls after its long prompt.

Such a client sends tools and system text first. The user's first message starts with the names of
the tools, as the template repeats them, then reminders, and ends with the question. In a long
prompt everything but the question is far away: `heads` and `tails` are the two ends of the prefix,
`rows` is what follows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench.demo_model.batches import Batch, BatchStream, Strip, batch_of
from bench.demo_model.chat import long_answer, question_and_answer
from bench.demo_model.dialogue import RESULT_IS_THERE, Random, Tool, Turn, any_words, listed
from bench.demo_model.noise import tool_definitions
from bench.demo_model.render import rendered, split_answers
from bench.demo_model.tools import CODING_KINDS, coding_tools, out_of_reach, tool_turn

_USER = "<|im_start|>user\n"
_CODING_TOOLS = ("Bash", "Read", "Write", "Edit")
_FAILED = "That did not work."
_LONG_ANSWER_TOKENS = 60
_NEVER_MANY = (0, 0, 0, 1, 1, 2, 4, 8)
_MANY = (0, 0, 1, 2, 4, 8, 12, 16, 20)


class SessionRows:
    """An endless, seeded stream of rows, and of the ends of their prefixes."""

    def __init__(self, stream: BatchStream, random_: Random) -> None:
        """Take noise and conversations from `stream`, everything else from `random_`."""
        self._stream = stream
        self._random = random_

    def heads(self, rows: int, length: int) -> npt.NDArray[np.int32]:
        """Return the first tokens of prompts that define tools, then hold system text."""
        return np.array([self._head(length) for _ in range(rows)], dtype=np.int32)

    def tails(self, rows: int, length: int) -> npt.NDArray[np.int32]:
        """Return the last tokens before a question: a reminder in a message with tool names."""
        return np.array([self._tail(length) for _ in range(rows)], dtype=np.int32)

    def rows(self, rows: int, length: int, *, offered: bool, behind: bool) -> Batch:
        """Return rows of questions, calls, results and answers.

        Args:
            rows: Number of rows.
            length: Tokens of each.
            offered: Whether the prompt offers tools.
            behind: Whether the rows start in the middle of a prompt.
        """
        cuts = []
        for _ in range(rows):
            strip = Strip()
            if behind and self._random.random() < 0.85:
                self._end_of_prompt(strip, length, offered=offered)
            tools = self._tools(_NEVER_MANY) if offered else []
            while len(strip.tokens) <= length:
                self._add_more(strip, tools)
            cuts.append(strip.cut(length + 1))
        batch = batch_of(cuts)
        if len(batch.targets):
            return batch
        return self.rows(rows, length, offered=offered, behind=behind)

    def long_rows(self, rows: int, length: int) -> Batch:
        """Return rows that begin with a question whose answer is long."""
        cuts = []
        for _ in range(rows):
            strip = Strip()
            while len(strip.tokens) <= length:
                strip.add(self._stream.encode(_USER))
                self._add_turn(strip, long_answer(self._random))
            cuts.append(strip.cut(length + 1))
        return batch_of(cuts)

    def _tools(self, sizes: Sequence[int]) -> list[Tool]:
        return coding_tools(self._random, self._random.choice(sizes))

    def _head(self, length: int) -> list[int]:
        random_, stream = self._random, self._stream
        names = [tool["function"]["name"] for tool in self._tools(_MANY)]
        definitions = "\n".join(tool_definitions(random_, stream.texts, names))
        return (stream.encode(definitions) + stream.some_noise(length))[:length]

    def _tail(self, length: int) -> list[int]:
        random_, stream = self._random, self._stream
        opening = _USER + self._tool_line(self._tools(_MANY)) + "<system-reminder>\n"
        near = stream.encode("<|im_end|>\n" + opening)
        reminder = random_.randint(20, length)
        before = max(0, length - len(near) - reminder)
        return (stream.some_noise(before) + near + stream.some_noise(length))[:length]

    def _tool_line(self, tools: Sequence[Tool]) -> str:
        text = rendered([{"role": "user", "content": ""}], list(tools))
        return text[text.index(_USER) + len(_USER) :].removesuffix("<|im_end|>\n")

    def _end_of_prompt(self, strip: Strip, length: int, *, offered: bool) -> None:
        """Add the end of the prefix before a question, and the answer to it."""
        random_, stream = self._random, self._stream
        strip.add(stream.some_noise(random_.randint(0, length // 3)))
        if offered and random_.random() < 0.1:
            # The tool's result is longer than the row.
            known = Turn(user="", answer=RESULT_IS_THERE, thought=RESULT_IS_THERE)
            _, answer = known.messages(thinks=random_.random() < 0.5)
            self._add_text(strip, f"\n</tool_response><|im_end|>\n{rendered([answer])}")
            return
        gap = random_.choice(("\n", "\n\n", "\n\n\n"))
        reminder = f"\n</system-reminder>{gap}"
        if random_.random() < 0.4:
            reminder += f"<system-reminder>\n{self._excerpt(20, 400)}\n</system-reminder>{gap}"
        system = f"<|im_end|>\n{_USER}"
        strip.add(stream.encode(reminder if offered or random_.random() < 0.5 else system))
        if offered and random_.random() < 0.6:
            self._add_turn(strip, self._disturbed(tool_turn(random_, CODING_KINDS)))
        elif not offered and random_.random() < 0.05:
            self._add_turn(strip, out_of_reach(random_, _CODING_TOOLS))
        else:
            self._add_turn(strip, question_and_answer(random_))

    def _add_more(self, strip: Strip, tools: Sequence[Tool]) -> None:
        """Add another turn of the session, or another conversation."""
        random_ = self._random
        if random_.random() < 0.15:
            self._stream.add_conversation(strip)
            return
        line = self._tool_line(tools) if tools else ""
        if tools and random_.random() < 0.3:
            line += f"<system-reminder>\n{self._excerpt(20, 600)}\n</system-reminder>\n\n"
        strip.add(self._stream.encode(_USER + line))
        roll = random_.random()
        if tools and roll < 0.5:
            self._add_turn(strip, self._disturbed(tool_turn(random_, CODING_KINDS)))
        elif tools and roll < 0.53:
            self._add_turn(strip, self._notice())
        elif not tools and roll < 0.04:
            self._add_turn(strip, out_of_reach(random_, _CODING_TOOLS))
        elif roll > 0.93:
            self._add_turn(strip, long_answer(random_))
        else:
            self._add_turn(strip, question_and_answer(random_))

    def _add_turn(self, strip: Strip, turn: Turn) -> None:
        """Add a question, its call and result if it has one, and the answer, without the mark."""
        messages = turn.messages(thinks=self._random.random() < 0.5)
        self._add_text(strip, rendered(messages).removeprefix(_USER))

    def _notice(self) -> Turn:
        """Return a message that is not from the user: a subagent's work has ended."""
        result = any_words(self._random, 1, 8)
        before, after = self._excerpt(0, 300), self._excerpt(0, 200)
        return Turn(
            user=f"<system-reminder>\n{before}<result>{result}</result>{after}\n</system-reminder>",
            answer=f"The subagent answered: {result}",
            thought=RESULT_IS_THERE,
        )

    def _disturbed(self, turn: Turn) -> Turn:
        """Return a call, of which some fail and some have results of many words."""
        roll = self._random.random()
        if roll < 0.12:
            return replace(turn, result=self._excerpt(300, 700), answer=RESULT_IS_THERE)
        if roll < 0.22:
            failure = self._random.choice(listed("failures")).format(self._excerpt(0, 80))
            return replace(turn, result=failure, answer=_FAILED)
        return turn

    def _add_text(self, strip: Strip, text: str) -> None:
        """Add rendered text; of long answers mainly the beginning and the end are learned."""
        for piece, learned in split_answers(text):
            tokens = self._stream.encode(piece)
            if not learned or len(tokens) <= _LONG_ANSWER_TOKENS:
                strip.add(tokens, learned=learned)
                continue
            edge = _LONG_ANSWER_TOKENS // 3
            for place, token in enumerate(tokens):
                inner = edge <= place < len(tokens) - edge
                strip.add([token], learned=not inner or self._random.random() < 0.3)

    def _excerpt(self, low: int, high: int) -> str:
        text = self._random.choice(self._stream.texts)
        start = self._random.randrange(len(text))
        return text[start : start + self._random.randint(low, high)]
