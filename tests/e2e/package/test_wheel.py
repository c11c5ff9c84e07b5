"""The wheel, installed outside of the checkout: it serves, and it has what it should have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from tests.supply_chain.licences import vendored
from tests.supply_chain.release import version
from tests.supply_chain.secret_scan import files_of
from tests.support.polling import scaled
from tests.support.processes.installation import (
    ROOT,
    Packages,
    install_alone,
    installed_service,
    run,
)
from tests.support.processes.service import Service

PARTS = ("api", "worker", "domain", "ops", "migrations")


@pytest.fixture(scope="module")
def python(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_alone(packages.wheel, tmp_path_factory.mktemp("installed") / "environment")


@pytest.fixture(scope="module")
def installed(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = installed_service(python, tmp_path_factory.mktemp("elsewhere")).start()
    yield running
    assert running.stop() == 0, running.log()


def test_wheel_has_every_file_of_the_service_and_nothing_else(packages: Packages) -> None:
    with ZipFile(packages.wheel) as wheel:
        names = {*wheel.namelist()}
    parts = tuple(f"{part}/" for part in PARTS)
    ours = {name for name in files_of(ROOT) if name.startswith(parts) and (ROOT / name).is_file()}
    deployed = {name for name in ours if name.startswith("ops/deploy/")}
    app = "semantic/app/"
    assert {name.removeprefix(app) for name in names if name.startswith(app)} == ours - deployed
    assert {name.partition("/")[0] for name in names} == {
        "semantic",
        f"semantic-{version()}.dist-info",
    }
    licences = f"semantic-{version()}.dist-info/licenses/"
    assert {"semantic/py.typed", f"{licences}LICENSE", f"{licences}NOTICE"} <= names


def test_notice_names_every_vendored_package() -> None:
    notice = (ROOT / "NOTICE").read_text().lower()
    for name, (release, _) in vendored().items():
        assert f"{name} {release}" in notice


def test_command_prints_the_version(python: Path, tmp_path: Path) -> None:
    semantic = str(python.with_name("semantic"))
    assert run([semantic, "--version"], tmp_path) == f"semantic {version()}\n"
    assert run([str(python), "-m", "semantic", "--version"], tmp_path) == f"semantic {version()}\n"


def test_general_names_are_not_importable_by_other_programs(python: Path, tmp_path: Path) -> None:
    program = (
        "import importlib.util as found, semantic\n"
        f"print([name for name in {PARTS!r} if found.find_spec(name) is not None])"
    )
    assert run([str(python), "-P", "-c", program], tmp_path) == "[]\n"


def test_packages_of_the_same_names_beside_the_installation_are_not_imported(
    python: Path, tmp_path: Path
) -> None:
    for name in PARTS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    semantic = str(python.with_name("semantic"))
    answer = run([semantic, "--version"], tmp_path, PYTHONPATH=str(tmp_path))
    assert answer == f"semantic {version()}\n"


def test_installed_service_answers_with_the_demo_model(installed: Service) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = {"model": "semantic-demo", "messages": question, "max_tokens": 32, "temperature": 0}
    reply = httpx.post(
        f"{installed.base_url}/v1/chat/completions", json=body, timeout=scaled(60)
    ).json()
    assert "Paris" in reply["choices"][0]["message"]["content"]


def test_installed_service_has_page_and_tables(installed: Service, python: Path) -> None:
    with httpx.Client(base_url=installed.base_url, timeout=scaled(60)) as client:
        page = client.get("/ui")
        assert page.status_code == 200
        assert client.get("/ui/static/vendor/preact.js").status_code == 200
        assert client.get("/openapi.json").json()["info"]["version"] == version()
    semantic = str(python.with_name("semantic"))
    options = ["--data-dir", str(installed.data_dir)]
    assert " verify" in run([semantic, "log", "verify", *options], installed.data_dir)


def test_every_process_runs_the_installed_files(installed: Service, python: Path) -> None:
    parts = [part for part in installed.descendants() if "-m" in part.cmdline()]
    assert parts
    app = python.parents[1]
    for part in parts:
        assert Path(part.cmdline()[0]).is_relative_to(app)
        search = part.environ()["PYTHONPATH"].split(":")
        assert Path(search[0]).is_relative_to(app)
        assert not [path for path in search if Path(path) == ROOT]
