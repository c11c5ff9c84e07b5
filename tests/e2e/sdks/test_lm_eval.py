"""lm-eval's log-likelihoods by the service and by mlx-lm's own scorer are the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import worker.demo_model
from tests.support.clients import npm, pypi
from tests.support.polling import scaled
from tests.support.processes.service import Service

_MODEL = Path(worker.demo_model.__file__).parent
_PACKAGES = ("lm_eval[api]==0.4.13", "mlx-lm==0.32.2", "transformers<6")
_CAPITALS = [
    ("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin"),
    ("Japan", "Tokyo"), ("Egypt", "Cairo"), ("Greece", "Athens"), ("Norway", "Oslo"),
]  # fmt: skip
_TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {lines}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: What is the capital of {{{{country}}}}?\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
#: Largest difference of two log-likelihoods, as a share and absolutely: the demo model computes in
#: bfloat16, and the service reads a prompt in pieces. In float32 they differ by 6e-5 at most.
_NOISE, _LEAST_NOISE = 0.02, 0.05


@pytest.mark.nightly
def test_scores_are_those_of_mlx_lm(service: Service, tmp_path: Path) -> None:
    python = pypi.install("lm-eval-0.4.13", "python", *_PACKAGES)
    _write_task(tmp_path)
    arguments = (
        f"model=semantic-demo,base_url={service.base_url}/v1/completions,num_concurrent=4,"
        f"tokenizer_backend=huggingface,tokenizer={_MODEL}"
    )
    ours = _scores(python, tmp_path, arguments)
    theirs = _scores(python, tmp_path, str(_MODEL))
    for metric in ("acc,none", "acc_norm,none"):
        assert ours["scores"][metric] == theirs["scores"][metric]
    pairs = list(zip(_flat(ours), _flat(theirs), strict=True))
    assert len(pairs) == 4 * len(_CAPITALS)
    for (mine, greedy), (other, is_greedy) in pairs:
        assert mine == pytest.approx(other, rel=_NOISE, abs=_LEAST_NOISE)
        assert greedy == is_greedy


def _write_task(directory: Path) -> None:
    lines = directory / "capitals.jsonl"
    rows = []
    for number, (country, city) in enumerate(_CAPITALS):
        options = [_CAPITALS[(number + step) % len(_CAPITALS)][1] for step in (1, 2, 3)]
        options.insert(number % 4, city)
        rows.append(json.dumps({"country": country, "choices": options, "answer": number % 4}))
    lines.write_text("\n".join(rows) + "\n")
    (directory / "capitals.yaml").write_text(_TASK.format(lines=lines))


def _scores(python: Path, directory: Path, model: str) -> Any:
    program = npm.ROOT / "tests" / "support" / "processes" / "lm_eval_scores.py"
    done = subprocess.run(
        [python, program, directory, "capitals", model],
        env={"HOME": str(directory), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1",
             "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "local"},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(900),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def _flat(found: Any) -> list[tuple[float, bool]]:
    """Return the log-likelihood of each option, and whether it is the likeliest text."""
    pairs = [one[0] if isinstance(one[0], list) else one for row in found["resps"] for one in row]
    return [(float(value), str(greedy) == "True") for value, greedy in pairs]
