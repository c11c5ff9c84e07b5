"""Kept answers of mlx-lm on SmolLM2: ``python -m tests.support.models.real_answers`` writes them.

The file is a fixture. The tests of the night compute its answers anew.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from domain.model.registry import ModelEntry
from tests.support.models.real_engine import Reference, prompt_texts, reference, rendered
from tests.support.models.real_packages import Mismatch, Unavailable
from tests.support.models.real_weights import origin_of, prepare
from worker.engine.mlx.cpu import computes_on_cpu
from worker.engine.mlx.model.loader import LoadedWeights, load_weights

FIXTURE: Final = Path(__file__).parents[2] / "fixtures" / "real" / "smollm2.json"
MODEL: Final = "smollm2-float32"
#: Prompts and tokens of an answer in ``make test``.
PROMPTS: Final = 6
TOKENS: Final = 32

#: Its context has a block of 256 tokens, the shortest part that is written to the disk.
LONG_TEXT: Final = "Which of these tasks is the easiest? Why?\n" + "\n".join(prompt_texts(24))


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt with its answer.

    Attributes:
        prompt: Its tokens by the template of the model.
    """

    text: str
    prompt: tuple[int, ...]
    answer: Reference


@dataclass(frozen=True, slots=True)
class KeptAnswers:
    """Answers that are computed once for each model.

    Attributes:
        origin: What the model was made from, with hashes.
    """

    origin: Mapping[str, Any]
    answers: Mapping[str, Answered] = field(default_factory=dict)

    def of(self, weights: LoadedWeights, texts: Sequence[str], tokens_max: int) -> list[Answered]:
        """Return answers; what is not kept, or longer than what is kept, is computed.

        Raises:
            AssertionError: A kept prompt has other tokens now.
        """
        prompts = rendered(weights, texts)
        found = []
        for text, prompt in zip(texts, prompts, strict=True):
            kept = self.answers.get(text) if tokens_max <= TOKENS else None
            if kept is None:
                found.append(Answered(text, prompt, reference(weights, prompt, tokens_max)))
                continue
            assert prompt == kept.prompt, f"{text!r} is rendered as other tokens than those kept"
            found.append(Answered(text, prompt, kept.answer.first(tokens_max)))
        return found


def kept_answers(directory: Path, file: Path = FIXTURE) -> KeptAnswers:
    """Return those of a file, or none where they are of another model or MLX has a GPU."""
    origin = origin_of(directory)
    found = json.loads(file.read_text())
    if found["origin"] != origin or not computes_on_cpu():
        return KeptAnswers(origin)
    answers = (
        Answered(
            one["text"],
            tuple(one["prompt"]),
            Reference(tuple(one["tokens"]), tuple(one["margins"])),
        )
        for one in found["answers"]
    )
    return KeptAnswers(origin, {one.text: one for one in answers})


def computed(weights: LoadedWeights) -> list[Answered]:
    """Return the answers of the file, computed now."""
    return KeptAnswers({}).of(weights, [*prompt_texts(PROMPTS), LONG_TEXT], TOKENS)


def main() -> int:
    """Compute the answers and write the file."""
    try:
        directory = prepare(MODEL)
    except (Unavailable, Mismatch) as error:
        print(f"real_answers: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    answers = [
        {
            "text": one.text,
            "prompt": one.prompt,
            "tokens": one.answer.tokens,
            "margins": [round(margin, 4) for margin in one.answer.margins],
        }
        for one in computed(load_weights(ModelEntry(name="tiny", source=str(directory))))
    ]
    FIXTURE.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in answers)
    origin = json.dumps(origin_of(directory))
    FIXTURE.write_text(f'{{"origin": {origin},\n"answers": [\n{lines}\n]}}\n')
    print(FIXTURE)  # noqa: T201 - a command
    return 0


if __name__ == "__main__":
    sys.exit(main())
