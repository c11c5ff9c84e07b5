from __future__ import annotations

import json
import random
import re
from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer

from bench.demo_model.agent_check import ERRANDS, agent_prompt, is_call
from bench.demo_model.batches import Batch, BatchStream
from bench.demo_model.noise import held_out_texts, standard_library_texts
from bench.demo_model.render import MODEL_DIR
from bench.demo_model.sessions import SessionRows
from bench.demo_model.toolset import coding_tools

LENGTH = 256
CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def stream(tokenizer: Tokenizer) -> BatchStream:
    return BatchStream(tokenizer, seed=1, reminders=0.3)


def texts(tokenizer: Tokenizer, batch: Batch) -> list[str]:
    return [tokenizer.decode(list(row), skip_special_tokens=False) for row in batch.inputs]


def test_the_same_seed_gives_the_same_rows(tokenizer: Tokenizer) -> None:
    first, second = (
        SessionRows(BatchStream(tokenizer, 3), random.Random(5)).rows(
            3, LENGTH, offered=True, behind=True
        )
        for _ in range(2)
    )
    assert (first.inputs == second.inputs).all()
    assert (first.positions == second.positions).all()


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("offered", [True, False])
def test_what_is_learned_is_what_follows(
    stream: BatchStream, *, offered: bool, behind: bool
) -> None:
    batch = SessionRows(stream, random.Random(2)).rows(4, LENGTH, offered=offered, behind=behind)
    assert batch.inputs.shape == (4, LENGTH)
    flat = batch.inputs.reshape(-1)
    # The successor of a row's last token is not in the row.
    inner = batch.positions[batch.positions % LENGTH != LENGTH - 1]
    known = batch.targets[batch.positions % LENGTH != LENGTH - 1]
    assert (flat[inner + 1] == known).all()


def test_calls_are_json_and_name_tools_of_a_coding_agent(
    tokenizer: Tokenizer, stream: BatchStream
) -> None:
    sessions = SessionRows(stream, random.Random(3))
    names: Counter[str] = Counter()
    for _ in range(40):
        batch = sessions.rows(3, 2 * LENGTH, offered=True, behind=True)
        for text in texts(tokenizer, batch):
            names.update(json.loads(call)["name"] for call in CALL.findall(text))
    assert {"Bash", "Read", "Write", "Edit", "Agent"} <= set(names)


def test_the_end_of_a_prompt_repeats_the_names_of_its_tools(
    tokenizer: Tokenizer, stream: BatchStream
) -> None:
    rows = SessionRows(stream, random.Random(4)).tails(20, 640)
    said = [tokenizer.decode(list(row), skip_special_tokens=False) for row in rows]
    whole = [text for text in said if "<system-reminder>\n" in text]
    assert whole
    for text in whole:
        line = re.search(r"<\|im_start\|>user\n\[tools: (.*?)\]\n<system-reminder>", text)
        assert line is None or "Bash(command)" in line[1]
    assert any("[tools: " in text for text in whole)


def test_prompts_open_with_definitions_of_tools(tokenizer: Tokenizer, stream: BatchStream) -> None:
    for row in SessionRows(stream, random.Random(5)).heads(5, 1024):
        text = tokenizer.decode(list(row), skip_special_tokens=False)
        assert text.startswith('<|im_start|>system\n# Tools\n<tools>\n{"type": "function"')


def test_of_a_long_answer_beginning_and_end_are_learned_whole(stream: BatchStream) -> None:
    batch = SessionRows(stream, random.Random(6)).long_rows(2, 2 * LENGTH)
    learned = np.zeros(batch.inputs.size, dtype=bool)
    learned[batch.positions] = True
    assert 0.2 < learned.mean() < 0.9


def test_a_coding_agent_offers_files_and_shell_among_many() -> None:
    for size in (0, 3, 20):
        tools = coding_tools(random.Random(size), size)
        names = {tool["function"]["name"] for tool in tools}
        assert {"Bash", "Read", "Write", "Edit"} <= names
        assert len(tools) == size + 4


def test_only_the_very_call_counts() -> None:
    write = ERRANDS[0]
    whole = json.dumps({"name": write.name, "arguments": write.arguments})
    assert is_call(f"I call Write.\n</think>\n\n<tool_call>\n{whole}\n</tool_call>", write)
    assert not is_call(f"<tool_call>\n{whole}", write)
    assert not is_call(f"<tool_call>\n{whole[:-1]}\n</tool_call>", write)
    assert not is_call(f"<tool_call>\n{whole}\n</tool_call>\n<tool_call>", write)
    assert not is_call(f"<tool_call>\n{whole.replace('hello.py', 'help.py')}\n</tool_call>", write)
    assert not is_call("The capital of France is Paris.", write)


def test_the_prompt_of_the_check_has_the_wanted_size_and_unknown_text(
    tokenizer: Tokenizer,
) -> None:
    for size in (2000, 5000, 12_000):
        prompt = agent_prompt(size, seed=1)
        text = json.dumps(prompt.tools, ensure_ascii=False) + prompt.system + prompt.reminder
        assert 0.75 * size < len(tokenizer.encode(text).ids) < 1.4 * size
    learned = set(standard_library_texts(10_000_000))
    assert learned.isdisjoint(held_out_texts())
