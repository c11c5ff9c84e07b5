"""Trains on long prompts at the cost of short ones.

Only one layer attends beyond the last few hundred tokens, so a distant token affects an answer only
through that layer's keys and values. These depend on the token's hidden state below the layer,
which depends on its neighbours but not on its place in the prompt. With the embedding and the lower
layers frozen, the states of much text are computed once. A training row is then a short text with
thousands of such states in front of it.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_lm.models import llama
from mlx_lm.models.base import create_attention_mask

from bench.demo_model import network
from bench.demo_model.batches import Batch, BatchStream, Strip, batch_of
from bench.demo_model.chat import long_answer, question_and_answer
from bench.demo_model.dialogue import RESULT_IS_THERE, Random, Tool, Turn, any_words, listed
from bench.demo_model.noise import tool_definitions
from bench.demo_model.render import rendered, split_answers
from bench.demo_model.tools import CODING_KINDS, coding_tools, out_of_reach, tool_turn
from bench.demo_model.training import Plan, score

_USER = "<|im_start|>user\n"
_CODING_TOOLS = ("Bash", "Read", "Write", "Edit")
_FAILED = "That did not work."
_LONG_ANSWER_TOKENS = 60
_NEVER_MANY = (0, 0, 0, 1, 1, 2, 4, 8)
_MANY = (0, 0, 1, 2, 4, 8, 12, 16, 20)


class SessionRows:
    """Rows of a coding agent's session: questions and tool calls after its long prompt.

    Such a client sends tools and system text first. The user's first message starts with the names
    of the tools, as the template repeats them, then reminders, and ends with the question. In a
    long prompt everything but the question is far away: `heads` and `tails` are the two ends of the
    prefix, `rows` is what follows. All are endless and seeded.
    """

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


_FULL_LAYER = network.LAYERS.index("F")

_OPENING_TOKENS = 1536
_TAIL_TOKENS = 640
_NO_PREFIX = 0.3
_TOOLS = 0.65
_LONG_ANSWERS = 0.2
_SHORTEST, _LONGEST = 400, 16_000
_MAX_STATES = 12_000

States = npt.NDArray[np.float16]


@dataclass(frozen=True)
class DistantBatch(Batch):
    """Rows of tokens with long prefixes.

    Attributes:
        far: Hidden states of the tokens before each row, below the full layer.
    """

    far: States


def freeze_below_full_layer(model: llama.Model) -> None:
    """Exclude from training all parameters that the stored states depend on."""
    model.model.embed_tokens.freeze()
    for layer in model.model.layers[:_FULL_LAYER]:
        layer.freeze()


def states_below_full_layer(model: llama.Model, tokens: npt.NDArray[np.int32]) -> mx.array:
    """Return the hidden states of `tokens` that the full layer gets as its input."""
    hidden = model.model.embed_tokens(mx.array(tokens))
    mask = create_attention_mask(hidden, window_size=network.WINDOW)
    for layer in model.model.layers[:_FULL_LAYER]:
        hidden = layer(hidden, mask)
    return mx.stop_gradient(hidden)


def loss_and_accuracy(model: llama.Model, batch: DistantBatch) -> tuple[mx.array, mx.array]:
    """Return mean cross entropy and share of right guesses at the learned positions."""
    hidden = states_below_full_layer(model, batch.inputs)
    mask = create_attention_mask(hidden, window_size=network.WINDOW)
    far = mx.array(batch.far).astype(mx.float32)
    hidden = _full_layer(model.model.layers[_FULL_LAYER], hidden, far)
    for layer in model.model.layers[_FULL_LAYER + 1 :]:
        hidden = layer(hidden, mask)
    return score(model, model.model.norm(hidden), batch)


def _full_layer(layer: Any, near: mx.array, far: mx.array) -> mx.array:
    """Return the layer's output for the `near` tokens, which also see all `far` ones."""
    attention = layer.self_attn
    normed = layer.input_layernorm(mx.concatenate([far, near], axis=1))
    count = far.shape[1]
    queries = attention.rope(_heads(attention.q_proj(normed[:, count:])), offset=count)
    keys = attention.rope(_heads(attention.k_proj(normed)))
    values = _heads(attention.v_proj(normed))
    output = mx.fast.scaled_dot_product_attention(
        queries,
        keys,
        values,
        scale=attention.scale,
        mask=mx.tril(mx.ones((near.shape[1], normed.shape[1]), dtype=mx.bool_), k=count),
    )
    hidden = near + attention.o_proj(output.transpose(0, 2, 1, 3).reshape(near.shape))
    result: mx.array = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return result


def _heads(projected: mx.array) -> mx.array:
    rows, length, _ = projected.shape
    split = projected.reshape(rows, length, network.HEADS, network.HEAD_DIM)
    return split.transpose(0, 2, 1, 3)


def _states_of(model: llama.Model, tokens: npt.NDArray[np.int32]) -> States:
    states = states_below_full_layer(model, tokens[None])[0].astype(mx.float16)
    mx.eval(states)
    return np.array(states)


class DistantStream:
    """An endless, seeded stream of short rows behind prefixes of every length.

    The prefix of a coding agent has tools first, then any text, then a message's opening; that of
    others is any text: an opening of a prompt, and pieces of other ones.
    """

    def __init__(self, model: llama.Model, near: BatchStream, plan: Plan) -> None:
        """Compute the states of the prefixes, and take the rows from sessions."""
        seed, count = plan.seed, plan.openings
        self._plan, self._random = plan, random.Random(f"distant {seed}")
        self._sessions = SessionRows(near, random.Random(f"sessions {seed}"))
        self._openings, self._heads, self._tails = (
            [_states_of(model, tokens) for tokens in rows]
            for rows in (
                near.openings_of_prompts(count, _OPENING_TOKENS),
                self._sessions.heads(count, _OPENING_TOKENS),
                self._sessions.tails(2 * count, _TAIL_TOKENS),
            )
        )

    def next(self, _progress: float) -> DistantBatch:
        """Return the next batch; all its rows have prefixes of the same length."""
        random_, plan = self._random, self._plan
        offered = random_.random() < _TOOLS
        if random_.random() < _LONG_ANSWERS:
            rows, length = max(1, plan.rows // 2), plan.length * 2
            count = random_.choice((0, 0, self._prefix() // 2))
            near = self._sessions.long_rows(rows, length)
        else:
            count = 0 if random_.random() < _NO_PREFIX else self._prefix()
            rows = max(1, min(plan.rows, _MAX_STATES // max(1, count)))
            near = self._sessions.rows(rows, plan.length, offered=offered, behind=count > 0)
        piece = self._agent_states if offered else self._any_states
        far = np.stack([piece(count) for _ in near.inputs])
        return DistantBatch(near.inputs, near.positions, near.targets, far)

    def _prefix(self) -> int:
        low, high = math.log(_SHORTEST), math.log(_LONGEST)
        return int(math.exp(self._random.uniform(low, high)))

    def _any_states(self, length: int) -> States:
        drawn = np.empty((length, network.HIDDEN), dtype=np.float16)
        filled = 0
        while filled < length:
            opening = self._random.choice(self._openings)
            start = self._random.randrange(len(opening)) if filled else 0
            piece = opening[start : start + length - filled]
            drawn[filled : filled + len(piece)] = piece
            filled += len(piece)
        return drawn

    def _agent_states(self, length: int) -> States:
        """Return the states of one row; of a short one the end is what remains."""
        head, tail = self._random.choice(self._heads), self._random.choice(self._tails)
        # Long reminders part the names of the tools from the question.
        after = self._random.choice((0, 0, length // 5))
        rest = max(0, length - len(head) - len(tail))
        after = min(after, rest)
        parts = (head, self._any_states(rest - after), tail, self._any_states(after))
        return np.concatenate(parts)[-length:] if length else np.concatenate(parts)[:0]
