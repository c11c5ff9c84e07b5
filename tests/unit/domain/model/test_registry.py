"""Which model a name in a request belongs to."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest, ModelNotFound
from domain.model.registry import ModelEntry, ModelKind, ModelRegistry

QWEN = ModelEntry(name="qwen", source="org/Qwen", aliases=("big", "gpt-4o"))
DEMO = ModelEntry(name="semantic-demo", source="semantic-demo", aliases=("qwen", "big"))
REGISTRY = ModelRegistry([QWEN, DEMO])


@pytest.mark.parametrize(
    ("asked", "bound"),
    [
        ("qwen", "qwen"),
        ("big", "qwen"),
        ("semantic-demo", "semantic-demo"),
        ("gpt-4o", "qwen"),
        ("gpt-5", None),
        ("claude-opus-4-1", None),
        ("o3-mini", None),
        ("", None),
    ],
)
def test_a_name_binds_before_a_pattern_follows(asked: str, bound: str | None) -> None:
    assert REGISTRY.bind(asked) == bound


@pytest.mark.parametrize("asked", ["Qwen", "llama", "omni", "claude", "xgpt-4"])
def test_an_unknown_name_is_refused_with_those_that_exist(asked: str) -> None:
    with pytest.raises(ModelNotFound, match="qwen, semantic-demo"):
        REGISTRY.bind(asked)


def test_a_message_lists_a_few_names_of_many() -> None:
    registry = ModelRegistry(ModelEntry(name=f"m{n}", source="s") for n in range(23))
    with pytest.raises(ModelNotFound, match=r"m0, m1, .*, m19 and 3 more$"):
        registry.bind("llama")


def test_the_patterns_are_a_choice() -> None:
    registry = ModelRegistry([QWEN], following=())
    with pytest.raises(ModelNotFound):
        registry.bind("claude-opus-4-1")
    assert ModelRegistry([QWEN], following=("*",)).bind("anything") is None


def test_the_first_of_two_models_of_one_name_counts() -> None:
    again = ModelEntry(name="qwen", source="another/Qwen")
    registry = ModelRegistry([QWEN, again])
    assert registry.entries() == (QWEN,)
    assert registry.get("big") is QWEN
    assert registry.get("llama") is None


VECTORS = ModelEntry(name="vectors", source="org/Vectors", kind=ModelKind.EMBEDDING)
BOTH = ModelRegistry([QWEN, VECTORS])


def test_source_is_a_name_where_no_model_has_it() -> None:
    assert BOTH.get("org/Qwen") is QWEN
    assert BOTH.bind("org/Qwen") == "qwen"
    taken = ModelRegistry([ModelEntry(name="a", source="b"), ModelEntry(name="b", source="c")])
    entry = taken.get("b")
    assert entry is not None
    assert entry.source == "c"


def test_request_is_refused_by_a_model_of_the_other_kind() -> None:
    assert BOTH.bind("vectors", embeds=True) == "vectors"
    with pytest.raises(InvalidRequest, match="vectors generates no text") as refused:
        BOTH.bind("vectors")
    assert refused.value.field == "model"
    with pytest.raises(InvalidRequest, match="qwen computes no vectors"):
        BOTH.bind("qwen", embeds=True)


def test_request_for_vectors_follows_no_model() -> None:
    with pytest.raises(ModelNotFound, match=r"there is: vectors$"):
        BOTH.bind("gpt-5", embeds=True)


def test_models_of_other_machines_have_no_source_and_keep_the_patterns() -> None:
    registry = ModelRegistry([QWEN], following=("x-*",))
    assert registry.extended(["qwen", "big"]) is registry
    wider = registry.extended(["night", "big", "night"])
    assert [(one.name, one.source) for one in wider.entries()] == [
        ("qwen", "org/Qwen"),
        ("night", ""),
    ]
    assert wider.following == ("x-*",)
