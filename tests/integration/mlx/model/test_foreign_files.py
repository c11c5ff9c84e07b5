"""A model from outside cannot run a program, and none of its files is mapped."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domain.chat.request import ChatRequest, Message
from domain.model.registry import ModelEntry
from domain.values import SamplingWish
from tests.support.models.tiny_models import make_tiny_llama
from worker.engine.mlx.model.loader import load_renderer, load_weights
from worker.engine.ports import ModelLoadError

Load = Callable[[ModelEntry], Any]
LOADS = pytest.mark.parametrize("load", [load_weights, load_renderer])


@pytest.fixture
def model_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a program that leaves a mark, and a user who agrees to everything."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    made = make_tiny_llama(tmp_path / "tiny")
    mark = tmp_path / "ran"
    program = f"""
open({str(mark)!r}, "w").close()
from transformers import PretrainedConfig, PreTrainedTokenizerFast
class Tokenizer(PreTrainedTokenizerFast): pass
class Config(PretrainedConfig): pass
class Model: pass
ModelArgs = Model
"""
    (made / "program.py").write_text(program)
    return made


def change(file: Path, **fields: Any) -> None:
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | fields))


@LOADS
def test_the_program_of_a_tokenizer_does_not_run_even_if_the_terminal_agrees(
    model_dir: Path, tmp_path: Path, load: Load
) -> None:
    change(
        model_dir / "tokenizer_config.json",
        auto_map={"AutoTokenizer": [None, "program.Tokenizer"]},
        tokenizer_class="Tokenizer",
    )
    change(model_dir / "config.json", auto_map={"AutoConfig": "program.Config"})
    with pytest.raises(ModelLoadError, match="custom code"):
        load(ModelEntry(name="tiny", source=str(model_dir)))
    assert not (tmp_path / "ran").exists()


def test_the_program_of_a_network_does_not_run(model_dir: Path, tmp_path: Path) -> None:
    change(model_dir / "config.json", model_file="program.py")
    with pytest.raises(ModelLoadError, match="custom module"):
        load_weights(ModelEntry(name="tiny", source=str(model_dir)))
    assert not (tmp_path / "ran").exists()


def test_weights_that_are_pickles_are_no_weights(model_dir: Path, tmp_path: Path) -> None:
    program = f"cbuiltins\nexec\n(Vopen({str(tmp_path / 'ran')!r}, 'w')\ntR.".encode()
    for weights in model_dir.glob("*.safetensors"):
        weights.unlink()
    for name in ("pytorch_model.bin", "model.pt", "model.npz", "model.ckpt"):
        (model_dir / name).write_bytes(program)
    with pytest.raises(ModelLoadError, match="weights missing"):
        load_weights(ModelEntry(name="tiny", source=str(model_dir)))
    (model_dir / "model.safetensors").write_bytes(program)
    with pytest.raises(ModelLoadError):
        load_weights(ModelEntry(name="tiny", source=str(model_dir)))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[-1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ raise_exception.__globals__['__builtins__']['open']('MARK', 'w') }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_chat_template_reaches_nothing_outside_its_sandbox(
    model_dir: Path, tmp_path: Path, template: str
) -> None:
    text = template.replace("MARK", str(tmp_path / "ran"))
    (model_dir / "chat_template.jinja").write_text(text)
    change(model_dir / "tokenizer_config.json", chat_template=text)
    request = ChatRequest(
        model="m",
        messages=(Message(role="user", content="hi"),),
        max_tokens=1,
        sampling=SamplingWish(),
    )
    with pytest.raises(Exception, match=r"unsafe|undefined|template"):
        load_renderer(ModelEntry(name="tiny", source=str(model_dir)))(request)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="maps are read from /proc")
def test_no_file_of_a_model_stays_mapped(model_dir: Path) -> None:
    shutil.copytree(model_dir, copied := model_dir.with_name("copied"))
    loaded = load_weights(ModelEntry(name="copied", source=str(copied)))
    assert str(copied) not in Path("/proc/self/maps").read_text()
    assert loaded.model.card.id == "copied"
