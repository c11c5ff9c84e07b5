"""Prints lm-eval's scores of one task as JSON; runs in the environment of lm-eval.

Args: the directory of the task, its name, and a directory of a model or arguments of
``local-completions``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import lm_eval  # type: ignore[import-not-found]  # this file runs where it is installed
from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]  # this file runs where it is installed


def main(directory: str, task: str, model: str) -> None:
    if Path(model).is_dir():
        from mlx_lm.evaluate import MLXLM  # noqa: PLC0415 - a run against a service needs no MLX

        chosen = {"model": MLXLM(model, batch_size=8, use_chat_template=False)}
    else:
        chosen = {"model": "local-completions", "model_args": model}
    tasks = TaskManager(include_path=directory, include_defaults=False)
    found = lm_eval.simple_evaluate(**chosen, tasks=[task], task_manager=tasks, bootstrap_iters=0)
    samples = sorted(found["samples"][task], key=lambda one: one["doc_id"])
    shown = {"scores": found["results"][task], "resps": [one["resps"] for one in samples]}
    sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
