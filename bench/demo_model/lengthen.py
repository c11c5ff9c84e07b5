"""Trains a model to answer after long prompts: `python -m bench.demo_model.lengthen`."""

import math
import random
from pathlib import Path

import mlx.core as mx

from bench.demo_model.batches import BatchStream
from bench.demo_model.cpu_kernels import fast_exponentials
from bench.demo_model.distant import (
    AgentBank,
    DistantBatch,
    StateBank,
    freeze_below_full_layer,
    loss_and_accuracy,
)
from bench.demo_model.render import MODEL_DIR
from bench.demo_model.sessions import SessionRows
from bench.demo_model.train import Plan, prepare, save_curve, save_weights, train, training_options

_OPENING_TOKENS = 1536
_TAIL_TOKENS = 640
_NO_PREFIX = 0.3
_TOOLS = 0.65
_LONG_ANSWERS = 0.2
_SHORTEST, _LONGEST = 400, 16_000
_MAX_STATES = 12_000


class DistantStream:
    """An endless, seeded stream of short rows behind prefixes of every length."""

    def __init__(
        self, sessions: SessionRows, plain: StateBank, agents: AgentBank, plan: Plan
    ) -> None:
        """Take rows from `sessions` and their prefixes from one of the banks."""
        self._sessions, self._plain, self._agents, self._plan = sessions, plain, agents, plan
        self._random = random.Random(f"distant {plan.seed}")

    def next(self, _progress: float) -> DistantBatch:
        """Return the next batch; all its rows have prefixes of the same length."""
        random_, plan = self._random, self._plan
        offered = random_.random() < _TOOLS
        bank = self._agents if offered else self._plain
        if random_.random() < _LONG_ANSWERS:
            rows, length = max(1, plan.rows // 2), plan.length * 2
            count = random_.choice((0, 0, self._prefix() // 2))
            near = self._sessions.long_rows(rows, length)
            return DistantBatch(near, bank.draw(rows, count))
        count = 0 if random_.random() < _NO_PREFIX else self._prefix()
        rows = max(1, min(plan.rows, _MAX_STATES // max(1, count)))
        near = self._sessions.rows(rows, plan.length, offered=offered, behind=count > 0)
        return DistantBatch(near, bank.draw(rows, count))

    def _prefix(self) -> int:
        low, high = math.log(_SHORTEST), math.log(_LONGEST)
        return int(math.exp(self._random.uniform(low, high)))


def run(plan: Plan, openings: int, start_from: Path, out: Path, curve_path: Path) -> None:
    """Train the layers from the full one upwards and write the result into `out`."""
    tokenizer, model = prepare(plan, out, start_from)
    near = BatchStream(tokenizer, plan.seed, reminders=0.3)
    sessions = SessionRows(near, random.Random(f"sessions {plan.seed}"))
    with fast_exponentials():
        tokens = near.openings_of_prompts(openings, _OPENING_TOKENS)
        bank = StateBank(model, tokens, random.Random(f"bank {plan.seed}"))
        ends = (
            sessions.heads(openings, _OPENING_TOKENS),
            sessions.tails(2 * openings, _TAIL_TOKENS),
        )
        agents = AgentBank(model, ends, bank, random.Random(f"agents {plan.seed}"))
        print(f"{tokens.size + sum(end.size for end in ends):,} states", flush=True)
        freeze_below_full_layer(model)
        stream = DistantStream(sessions, bank, agents, plan)
        curve = train(model, stream.next, plan, loss_and_accuracy)
    save_weights(model, out)
    save_curve(curve, curve_path)


def main() -> None:
    """Train from the command line."""
    parser = training_options(__doc__, seed=2, steps=600, minutes=15.0, rate=0.4, length=256)
    parser.add_argument("--rows", type=int, default=3, help="rows per worker and step")
    parser.add_argument("--openings", type=int, default=256, help="prompts to draw prefixes from")
    parser.set_defaults(start_from=MODEL_DIR)
    arguments = parser.parse_args()
    plan = Plan(
        seed=arguments.seed,
        steps=arguments.steps,
        minutes=arguments.minutes,
        workers=arguments.workers,
        rows=arguments.rows,
        length=arguments.length,
        rate=arguments.rate,
    )
    mx.set_default_device(mx.cpu)
    run(plan, arguments.openings, arguments.start_from, arguments.out, arguments.curve)


if __name__ == "__main__":
    main()
