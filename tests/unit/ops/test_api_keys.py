"""Keys as settings write them, and where they go and do not go from there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from ops.cli.service.config import origins
from ops.settings.api_keys import (
    SUPERVISOR_KEY,
    ApiKey,
    KeyScope,
    first_sendable,
    read_keys,
    scopes_of,
)
from ops.settings.service import ServerSettings
from ops.settings.settings import Settings, load_settings
from ops.supervisor.parts import child_environment, settings_environment
from ops.supervisor.probes import claim_port
from ops.supervisor.serve_record import CannotServe

KEY = "correct-horse-battery-staple"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (KEY, "key-1"),
        (f"laptop={KEY}", "laptop"),
        (f"laptop=sha256:{DIGEST}", "laptop"),
        (f"sha256:{DIGEST.upper()}", "key-1"),
    ],
)
def test_every_spelling_is_the_same_key(text: str, name: str) -> None:
    (key,) = read_keys([text])
    assert (key.name, key.digest.hex()) == (name, DIGEST)
    assert read_keys([key.text]) == (key,)


def test_base64_padding_is_no_name() -> None:
    (key,) = read_keys(["YWJjZGVmZ2hpamtsbW5vcA=="])
    assert key.name == "key-1"


@pytest.mark.parametrize("text", ["", "short", "laptop=short", "a key with some spaces", "ü" * 20])
def test_what_is_no_key_is_refused_without_being_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no key: 16 to") as caught:
        read_keys([text])
    assert not text or text not in str(caught.value)


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two keys are called a"):
        read_keys([f"a={KEY}", f"a={KEY}2"])


def test_a_digest_cannot_be_sent() -> None:
    assert first_sendable([f"a=sha256:{DIGEST}", f"b={KEY}"]) == KEY
    assert first_sendable([f"a=sha256:{DIGEST}"]) is None


def test_a_setting_that_is_no_key_is_not_repeated() -> None:
    with pytest.raises(ValidationError) as caught:
        load_settings(server={"api_keys": ["secret"]})
    assert "secret" not in str(caught.value).replace("SecretStr", "")


def test_config_show_masks_keys() -> None:
    given = {"server": {"api_keys": [f"laptop={KEY}"]}, "api_key": KEY}
    shown = {setting.name: setting.value for setting in origins(load_settings(**given), given)}
    assert KEY not in json.dumps(shown)
    assert shown["server.api_keys"] == ["**********"]
    assert shown["api_key"] == "**********"


def test_children_get_digests_only() -> None:
    settings = Settings(
        server=ServerSettings(api_keys=(SecretStr(f"laptop={KEY}"),)), api_key=SecretStr(KEY)
    )
    inherited = {"SEMANTIC_API_KEY": KEY, "semantic_server__api_keys": json.dumps([KEY])}
    environment = child_environment(inherited, settings, {})
    assert not any(KEY in value for value in environment.values())
    assert json.loads(environment["SEMANTIC_SERVER__API_KEYS"]) == [f"laptop=sha256:{DIGEST}"]


def test_other_secrets_reach_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "whsec_" + "QUJD" * 8
    for name, value in settings_environment(load_settings(webhooks={"secret": secret}), {}).items():
        monkeypatch.setenv(name, value)
    found = load_settings().webhooks.secret
    assert found is not None
    assert found.get_secret_value() == secret


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_asks_for_nothing(address: str) -> None:
    assert ServerSettings(host=address).why_not_listen(address) is None


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "fe80::1%eth0"])
def test_beyond_loopback_it_takes_a_wish_and_a_key(address: str) -> None:
    keys = (SecretStr(KEY),)
    neither = ServerSettings(host=address)
    reason = neither.why_not_listen(address)
    assert reason is not None
    assert "--allow-remote" in reason
    assert "SEMANTIC_SERVER__API_KEYS" in reason
    no_key = ServerSettings(host=address, allow_remote=True).why_not_listen(address)
    assert no_key is not None
    assert "--allow-remote" not in no_key
    no_wish = ServerSettings(host=address, api_keys=keys).why_not_listen(address)
    assert no_wish is not None
    assert "API_KEYS" not in no_wish
    both = ServerSettings(host=address, allow_remote=True, api_keys=keys)
    assert both.why_not_listen(address) is None


def test_the_supervisor_claims_no_port_for_everybody() -> None:
    server = ServerSettings(host="0.0.0.0", port=0)
    with pytest.raises(CannotServe, match="other machines"):
        claim_port(server.host, server.port, server=server)


@pytest.mark.parametrize("origin", ["*", "null", "example.com", "https://example.com/", "http://"])
def test_an_origin_no_browser_would_send_is_refused(origin: str) -> None:
    with pytest.raises(ValidationError):
        ServerSettings(cors_origins=(origin,))


def test_scopes_are_own_for_several_keys_and_admin_for_an_only_one() -> None:
    one, two = read_keys([f"a={'k' * 16}"]), read_keys([f"a={'k' * 16}", f"b={'l' * 16}"])
    ours = ApiKey(SUPERVISOR_KEY, b"")
    assert scopes_of((*one, ours), {})["a"] is KeyScope.ADMIN
    assert scopes_of((*two, ours), {"b": KeyScope.READ}) == {
        "a": KeyScope.OWN,
        "b": KeyScope.READ,
        SUPERVISOR_KEY: KeyScope.ADMIN,
    }


def test_a_scope_of_no_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="'b', which is no key"):
        ServerSettings.model_validate({"api_keys": [f"a={'k' * 16}"], "key_scopes": {"b": "read"}})
