from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from bench.demo_model.corpus import Conversation, sample
from bench.demo_model.noise import standard_library_texts
from bench.demo_model.render import MODEL_DIR, SPECIAL_TOKENS, Renderer, split_answers

COUNT = 300


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    return sample(seed=7, count=COUNT)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.fixture(scope="module")
def serving_tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(str(MODEL_DIR))


def test_same_seed_gives_the_same_conversations() -> None:
    assert sample(seed=3, count=50) == sample(seed=3, count=50)


def test_another_seed_gives_other_conversations() -> None:
    assert sample(seed=3, count=50) != sample(seed=4, count=50)


def test_library_texts_come_in_a_fixed_order_and_stop_at_the_limit() -> None:
    texts = standard_library_texts(50_000, seed=1)
    assert texts == standard_library_texts(50_000, seed=1)
    assert sum(map(len, texts[:-1])) < 50_000 <= sum(map(len, texts))


def test_training_renders_what_serving_renders(
    conversations: list[Conversation], renderer: Renderer, serving_tokenizer: Any
) -> None:
    for messages, tools in conversations:
        served = serving_tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
        assert renderer.text(messages, tools) == served


def test_pieces_make_up_the_whole_and_answers_end_with_the_end_mark(
    conversations: list[Conversation], renderer: Renderer
) -> None:
    for messages, tools in conversations:
        pieces = renderer.pieces(messages, tools)
        assert "".join(text for text, _ in pieces) == renderer.text(messages, tools)
        learned = [text for text, is_learned in pieces if is_learned]
        assert len(learned) == sum(message["role"] == "assistant" for message in messages)
        assert all(text.endswith("<|im_end|>") for text in learned)


def test_tokens_of_the_pieces_are_the_tokens_of_the_whole(
    conversations: list[Conversation], renderer: Renderer, tokenizer: Tokenizer
) -> None:
    for messages, tools in conversations:
        pieces = renderer.pieces(messages, tools)
        piecewise = [token for text, _ in pieces for token in tokenizer.encode(text).ids]
        assert piecewise == tokenizer.encode(renderer.text(messages, tools)).ids


def test_an_empty_thought_is_given_and_a_full_one_is_learned() -> None:
    opening = "<|im_start|>assistant\n<think>\n"
    empty = list(split_answers(f"{opening}\n</think>\n\nHi<|im_end|>\n"))
    full = list(split_answers(f"{opening}Greet.\n</think>\n\nHi<|im_end|>\n"))
    assert empty[1] == ("Hi<|im_end|>", True)
    assert full[1] == ("Greet.\n</think>\n\nHi<|im_end|>", True)


def test_a_longer_conversation_renders_with_the_shorter_one_as_its_prefix(
    conversations: list[Conversation], renderer: Renderer
) -> None:
    for messages, tools in conversations:
        whole = renderer.text(messages, tools)
        for index, message in enumerate(messages):
            if message["role"] == "assistant" and not message.get("reasoning_content"):
                asked = renderer.text(messages[:index], tools, add_generation_prompt=True)
                assert whole.startswith(asked)
            assert whole.startswith(renderer.text(messages[: index + 1], tools))


def test_each_special_token_is_one_token(tokenizer: Tokenizer) -> None:
    for number, token in enumerate(SPECIAL_TOKENS):
        assert tokenizer.encode(token).ids == [number]


def test_no_conversation_holds_a_mark_of_the_template(conversations: list[Conversation]) -> None:
    for messages, _ in conversations:
        for message in messages:
            assert not any(token in message["content"] for token in SPECIAL_TOKENS)


def test_corpus_needs_no_framework() -> None:
    folder = Path(sample.__code__.co_filename).parent
    for name in ("chat", "corpus", "dialogue", "facts", "longer", "toolset", "tooltalk"):
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        imported = {
            node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
        assert not any(module.startswith("mlx") for module in imported), name
