from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from worker.engine.mlx.model.loader import check_weight_files
from worker.engine.ports import ModelLoadError

WHOLE = save({"weight": np.zeros(8, np.float32)})


def test_whole_file_of_weights_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    check_weight_files(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        WHOLE[:7],
        WHOLE[:40],
        WHOLE[:-1],
        WHOLE + b"\0",
        b"<html>not found</html>" * 10,
        b"\xff" * 8 + WHOLE[8:],
        (2).to_bytes(8, "little") + b"[]",
    ],
    ids=[
        "empty",
        "no length",
        "half a header",
        "cut",
        "longer",
        "page",
        "huge header",
        "no object",
    ],
)
def test_other_file_under_the_name_of_weights_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is no whole file of weights: "):
        check_weight_files(tmp_path)


def test_directory_without_weights_and_a_link_to_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not hold all files of weights"):
        check_weight_files(tmp_path)
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "missing")
    with pytest.raises(ModelLoadError):
        check_weight_files(tmp_path)
