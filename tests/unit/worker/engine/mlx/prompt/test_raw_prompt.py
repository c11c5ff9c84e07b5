"""Raw prompts as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlx_lm.utils
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

import worker.demo_model
from domain.chat.request import ChatRequest, RawPrompt
from domain.errors import InvalidRequest
from domain.values import SamplingWish
from worker.engine.mlx.prompt.renderer import PromptRenderer
from worker.engine.mlx.prompt.segment_tokenizer import GAP_MARKS, RawRenderer

_START = "<s>"


@cache
def _tokenizer(marks: Sequence[str] = (), *, starts: bool = False) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=[_START, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["def add(a, b):"], trainer)
    if starts:
        start_id = tokenizer.token_to_id(_START)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_START} $A", special_tokens=[(_START, start_id)]
        )
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=tokenizer, bos_token=_START)


def _renderer(tokenizer: Any) -> RawRenderer:
    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return RawRenderer(tokenizer, encode)


def _ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def test_text_is_read_as_it_stands_with_the_start_that_the_tokenizer_puts_there() -> None:
    plain, starting = _tokenizer(), _tokenizer(starts=True)
    raw = RawPrompt(text=" def add")
    assert _renderer(plain).render(raw).tokens == _ids(plain, " def add")
    (start,) = _ids(starting, _START)
    assert _renderer(starting).render(raw).tokens == (start, *_ids(starting, " def add"))


def test_start_that_is_there_already_is_not_put_twice() -> None:
    tokenizer = _tokenizer(starts=True)
    begun = _renderer(tokenizer).render(RawPrompt(text=f"{_START}def")).tokens
    assert begun == _ids(tokenizer, f"{_START}def")
    assert _renderer(tokenizer).render(RawPrompt(ids=(9, 8))).tokens == (9, 8)


def test_empty_text_is_the_start_alone_or_nothing_at_all() -> None:
    assert len(_renderer(_tokenizer(starts=True)).render(RawPrompt()).tokens) == 1
    with pytest.raises(InvalidRequest) as caught:
        _renderer(_tokenizer()).render(RawPrompt())
    assert caught.value.field == "prompt"


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    tokenizer = _tokenizer()
    last = len(tokenizer) - 1
    assert _renderer(tokenizer).render(RawPrompt(ids=(last,))).tokens == (last,)
    with pytest.raises(InvalidRequest, match=str(last + 1)):
        _renderer(tokenizer).render(RawPrompt(ids=(0, last + 1)))


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("marks", GAP_MARKS)
def test_gap_is_marked_as_the_family_does(marks: tuple[str, str, str], *, starts: bool) -> None:
    tokenizer = _tokenizer(marks, starts=starts)
    raw = RawPrompt(text="def add(", suffix="):")
    before, behind, gap = marks
    expected = tokenizer.encode(f"{before}def add({behind}):{gap}", add_special_tokens=starts)
    assert _renderer(tokenizer).render(raw).tokens == tuple(expected)
    ids = RawPrompt(ids=_ids(tokenizer, "def add("), suffix="):")
    assert _renderer(tokenizer).render(ids).tokens[-1] == expected[-1]


def test_gap_without_marks_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        _renderer(_tokenizer()).render(RawPrompt(text="a", suffix=""))
    assert caught.value.field == "suffix"


def test_echo_is_the_text_or_what_the_ids_spell() -> None:
    tokenizer = _tokenizer(starts=True)
    render = _renderer(tokenizer).render
    assert render(RawPrompt(text="def a", is_echoed=True)).echoed == "def a"
    ids = _ids(tokenizer, "def a")
    assert render(RawPrompt(ids=ids, is_echoed=True)).echoed == "def a"
    assert render(RawPrompt(text="def a")).echoed == ""


def test_no_template_and_no_repair_of_half_characters() -> None:
    directory = Path(worker.demo_model.__file__).parent
    tokenizer = mlx_lm.utils.load_tokenizer(directory)
    renderer = PromptRenderer(tokenizer)

    def tokens(text: str) -> tuple[int, ...]:
        request = ChatRequest(
            model="m", messages=(), raw=RawPrompt(text=text), max_tokens=1, sampling=SamplingWish()
        )
        return renderer.render(request).tokens

    written = "<|im_start|>user\nHi<|im_end|>\n"
    assert tokens(written) == tuple(tokenizer.encode(written))
    assert tokens("a \ud800 b") == tokens("a � b")
