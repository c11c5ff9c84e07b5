"""Time to the first text: new conversation, the same again, its next turn, and another one."""

from __future__ import annotations

from bench.comparison.conversation import next_turn
from bench.comparison.measurements.base import MILLISECONDS, Measurement, Round, Row
from bench.comparison.server import Server


def _run(server: Server, round_: Round) -> dict[str, float]:
    messages = round_.conversations.begin(f"warmth {round_.name}")
    cold = server.ask(messages)
    identical = server.ask(messages)
    following = next_turn(messages, identical)
    next_ = server.ask(following)
    question = {"role": "user", "content": "How many days has a week?"}
    branch = server.ask([*following[:-1], question])
    return {
        "cold": 1000 * cold.first_s,
        "identical": 1000 * identical.first_s,
        "next_turn": 1000 * next_.first_s,
        "branch": 1000 * branch.first_s,
        "prompt_tokens": next_.prompt_tokens,
    }


WARMTH = Measurement(
    name="warmth",
    rows=(
        Row(key="cold", title="cold, first text", form=MILLISECONDS),
        Row(key="identical", title="identical request again", form=MILLISECONDS),
        Row(key="next_turn", title="next turn", form=MILLISECONDS),
        Row(key="branch", title="next turn asked in another way", form=MILLISECONDS),
        Row(key="prompt_tokens", title="tokens of that prompt", form="{:,.0f}"),
    ),
    run=_run,
)
