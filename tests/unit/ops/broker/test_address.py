"""Where the private broker listens, and how others learn of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from domain.errors import QueueUnavailable
from ops.broker.address import (
    SOCKET_PATH_BYTES_MAX,
    forget_url,
    resolve_broker_url,
    socket_path,
    url_of_socket,
    write_url,
)
from ops.settings.service import RedisSettings
from ops.settings.settings import Settings


def test_socket_lies_in_the_data_directory_if_the_path_is_short_enough() -> None:
    settings = Settings(data_dir=Path("/short"))
    assert socket_path(settings) == Path("/short/broker/redis.sock")


def test_socket_of_a_deep_data_directory_moves_to_a_private_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="s") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        deep, other = (Settings(data_dir=tmp_path / ("d" * 100) / name) for name in "ab")
        path = socket_path(deep)
        assert path.is_relative_to(short)
        assert len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX
        assert path.parent.stat().st_mode & 0o077 == 0
        assert path == socket_path(deep)
        assert path != socket_path(other)
        path.parent.chmod(0o755)
        with pytest.raises(PermissionError):
            socket_path(deep)


def test_url_of_a_path_with_blanks_leads_back_to_it() -> None:
    assert url_of_socket(Path("/Application Support/r#1.sock")) == (
        "unix:///Application%20Support/r%231.sock"
    )


def test_url_of_the_settings_wins() -> None:
    settings = Settings(redis=RedisSettings(url="redis://elsewhere:6379/0"))
    assert resolve_broker_url(settings) == "redis://elsewhere:6379/0"


def test_private_broker_is_found_by_its_file(tmp_path: Path, valkey_url: str) -> None:
    settings = Settings(data_dir=tmp_path)
    write_url(settings, valkey_url)
    assert resolve_broker_url(settings, wait_s=0) == valkey_url
    forget_url(settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", [None, "redis://127.0.0.1:9/0"])
def test_broker_that_does_not_answer_is_given_up(tmp_path: Path, url: str | None) -> None:
    settings = Settings(data_dir=tmp_path)
    if url is not None:
        write_url(settings, url)
    with pytest.raises(QueueUnavailable):
        resolve_broker_url(settings, wait_s=0.1)
