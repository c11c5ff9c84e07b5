"""Who is let in, and what the others are told."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.access.access_control import AccessControl, Hosts
from api.errors import TransportError
from domain.errors import RateLimited
from ops.settings.service import ServerSettings

KEY, OTHER = "correct-horse-battery-staple", "another-key-for-another-one"
HOST = {"host": "127.0.0.1:8000"}
PAGE = "https://app.example"
PREFLIGHT = HOST | {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "content-type, x-api-key",
}


def access(connections_max: int = 2048, /, **settings: Any) -> AccessControl:
    server = ServerSettings.model_validate(settings)
    return AccessControl.from_settings(server, connections_max=connections_max)


def refusal(
    which: AccessControl,
    headers: Mapping[str, str],
    method: str = "POST",
    target: str = "/v1/messages",
) -> TransportError:
    with pytest.raises(TransportError) as caught:
        which.admit(method, target, headers)
    error = caught.value
    # 401 carries a challenge (RFC 9110, section 15.5.2); with 403 another key would not help.
    if error.code == "invalid_api_key":
        assert error.status == 401
        assert error.headers["www-authenticate"].startswith('Bearer realm="semantic"')
    else:
        assert error.status == 403
        assert not error.headers
    assert not error.retryable
    return error


def test_without_keys_everybody_on_this_machine_comes_in() -> None:
    assert access().admit("POST", "/v1/messages", HOST).caller.name == ""


@pytest.mark.parametrize(
    "sent",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"x-api-key": KEY, "authorization": "Bearer meant-for-somebody-else"},
        {"x-api-key": "meant-for-somebody-else", "authorization": f"Bearer {KEY}"},
    ],
)
def test_a_key_comes_in_both_styles(sent: dict[str, str]) -> None:
    which = access(api_keys=[f"desk={OTHER}", f"laptop={KEY}"])
    assert which.admit("POST", "/v1/messages", HOST | sent).caller.name == "laptop"


def test_a_digest_in_the_settings_lets_its_key_in_and_not_itself() -> None:
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    which = access(api_keys=[f"laptop=sha256:{digest}"])
    assert which.admit("GET", "/v1/models", HOST | {"x-api-key": KEY}).caller.name == "laptop"
    for wrong in (digest, f"sha256:{digest}", f"laptop=sha256:{digest}"):
        refusal(which, HOST | {"x-api-key": wrong})


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": KEY},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": KEY + "x"},
        {"x-api-key": f"laptop={KEY}"},
        {"x-api-key": "\u00ff" * 20},
    ],
)
def test_anything_else_is_no_key(sent: dict[str, str]) -> None:
    error = refusal(access(api_keys=[f"laptop={KEY}"]), HOST | sent)
    assert error.code == "invalid_api_key"
    assert KEY not in error.message
    # RFC 6750, section 3.1: the error is named only where a key was sent.
    sends_key = "x-api-key" in sent or sent.get("authorization", "").startswith("Bearer ")
    assert ('error="invalid_token"' in error.headers["www-authenticate"]) is sends_key


@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/health/live"), ("HEAD", "/health/live"), ("HEAD", "/"), ("HEAD", "/?a=b")],
)
def test_life_is_told_without_a_key(method: str, target: str) -> None:
    assert access(api_keys=[KEY]).admit(method, target, HOST).caller.name == ""


def test_a_browser_is_led_to_the_page_without_a_key() -> None:
    headers = HOST | {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    assert access(api_keys=[KEY]).admit("GET", "/", headers).caller.name == ""
    refusal(access(api_keys=[KEY]), headers, "POST", "/")
    refusal(access(api_keys=[KEY]), headers, "GET", "/v1/models")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", "/health/live/"),
        ("GET", "/health/%6cive"),
        ("GET", "/health/live/../../v1/models"),
        ("GET", "http://localhost/health/live"),
        ("POST", "/health/live"),
        ("GET", "/health/ready"),
        ("GET", "/openapi.json"),
        ("OPTIONS", "/v1/messages"),
        ("OPTIONS", "*"),
    ],
)
def test_nothing_else_is_told_without_a_key(method: str, target: str) -> None:
    refusal(access(api_keys=[KEY]), HOST, method, target)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]:8000", "[::1]"],
)
def test_loopback_names_are_ours(host: str) -> None:
    access().admit("GET", "/health/live", {"host": host})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8000",
        "evil.example:127.0.0.1",
        "localhost:80:80",
        "localhost@evil.example",
        "evil.example, localhost",
        "192.168.1.7",
        "0.0.0.0",
        "",
    ],
)
@pytest.mark.parametrize("target", ["/health/live", "/v1/messages", "/nowhere"])
def test_a_stranger_s_name_is_refused_on_every_route(host: str, target: str) -> None:
    error = refusal(access(), {"host": host}, "GET", target)
    assert error.code == "host_not_allowed"
    assert "server.allowed_hosts" in error.message


@pytest.mark.parametrize("name", ["host.docker.internal", "mac.local", "192.168.1.7"])
def test_a_refused_name_comes_with_the_setting_that_allows_it(name: str) -> None:
    refused = refusal(access(), {"host": f"{name}:8000"}, "GET", "/v1/models").message
    found = re.search(r"SEMANTIC_SERVER__ALLOWED_HOSTS='(.*)'$", refused)
    assert found is not None, refused
    assert f"server.allowed_hosts = {found[1]}" in refused
    access(allowed_hosts=json.loads(found[1])).admit("GET", "/", {"host": f"{name}:8000"})


def test_an_absolute_target_names_the_host_that_counts() -> None:
    refusal(access(), {"host": "localhost"}, "GET", "http://evil.example/health/live")
    access().admit("GET", "http://localhost:8000/health/live", {"host": "localhost"})


def test_configured_names_and_the_address_listened_on_are_ours() -> None:
    which = access(host="192.168.1.7", allowed_hosts=["Box.lan"])
    for host in ("box.lan:8000", "192.168.1.7:8000", "localhost"):
        which.admit("GET", "/health/live", {"host": host})
    refusal(which, {"host": "192.168.1.8"})
    refusal(access(host="0.0.0.0"), {"host": "0.0.0.0:8000"})


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_host_makes_the_check_fail_otherwise(host: str, target: str) -> None:
    try:
        Hosts(listening="127.0.0.1", allowed=()).check(target, host)
    except TransportError as error:
        assert error.code == "host_not_allowed"  # noqa: PT017 - any other exception fails as well


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:8001", ""])
def test_a_page_that_is_not_listed_is_refused_whatever_it_sends(origin: str) -> None:
    which = access(api_keys=[KEY], cors_origins=[PAGE])
    sent = HOST | {"origin": origin, "content-type": "text/plain", "x-api-key": KEY}
    assert refusal(which, sent).code == "origin_not_allowed"
    assert refusal(which, sent, "GET", "/health/live").code == "origin_not_allowed"
    assert which.headers(sent) == {}


def test_the_own_page_may_send_requests_and_a_page_that_borrows_its_name_may_not() -> None:
    which = access(api_keys=[KEY], allowed_hosts=["box.lan"])
    own = HOST | {"origin": "http://127.0.0.1:8000", "x-api-key": KEY}
    which.admit("POST", "/v1/jobs", own)
    which.admit("POST", "/v1/jobs", own | {"sec-fetch-site": "same-origin"})
    behind_tls = {"host": "box.lan", "origin": "https://box.lan", "x-api-key": KEY}
    which.admit("POST", "/v1/jobs", behind_tls)
    for wrong in (
        own | {"sec-fetch-site": "same-site"},
        own | {"origin": "chrome-extension://127.0.0.1:8000"},
        own | {"origin": "http://127.0.0.1:8000.evil.example"},
        {"origin": "http://", "x-api-key": KEY},
    ):
        assert refusal(which, wrong).code == "origin_not_allowed"
    rebound = {"host": "evil.example", "origin": "http://evil.example", "x-api-key": KEY}
    assert refusal(which, rebound).code == "host_not_allowed"


@pytest.mark.parametrize("target", ["/ui", "/ui/", "/ui?a=b", "/ui/static/core/api.js"])
def test_the_files_of_the_page_need_no_key(target: str) -> None:
    which = access(api_keys=[KEY])
    assert which.admit("GET", target, HOST).caller.name == ""
    refusal(which, HOST, "POST", target)


@pytest.mark.parametrize(
    "target",
    ["/ui/../v1/jobs", "/ui/static/../../v1/jobs", "/ui/%2e%2e/v1/jobs", "/uix", "/ui/v1/jobs"],
)
def test_no_path_that_begins_like_the_page_needs_less_than_a_key(target: str) -> None:
    refusal(access(api_keys=[KEY]), HOST, "GET", target)


def test_images_and_scripts_of_other_sites_are_refused() -> None:
    crossing = HOST | {"sec-fetch-site": "cross-site"}
    refusal(access(), crossing | {"sec-fetch-mode": "no-cors"}, "GET", "/v1/jobs")
    access().admit("GET", "/v1/jobs", crossing | {"sec-fetch-mode": "navigate"})
    access().admit("GET", "/v1/jobs", HOST | {"sec-fetch-site": "none"})


def test_a_listed_page_comes_in_with_its_key() -> None:
    which = access(api_keys=[KEY], cors_origins=[PAGE])
    sent = HOST | {"origin": PAGE}
    assert refusal(which, sent).code == "invalid_api_key"
    which.admit("POST", "/v1/messages", sent | {"x-api-key": KEY})
    assert which.headers(sent)["access-control-allow-origin"] == PAGE
    assert which.headers(sent)["vary"] == "origin"


def test_a_preflight_is_answered_for_listed_pages_only() -> None:
    which = access(api_keys=[KEY], cors_origins=[PAGE])
    which.admit("OPTIONS", "/v1/messages", PREFLIGHT)
    reply = which.preflight("OPTIONS", PREFLIGHT)
    assert reply is not None
    assert reply.status == 204
    assert reply.headers["access-control-allow-headers"] == "content-type, x-api-key"
    stranger = PREFLIGHT | {"origin": "https://evil.example"}
    refusal(which, stranger, "OPTIONS")
    assert which.preflight("OPTIONS", stranger) is None
    assert which.preflight("POST", PREFLIGHT) is None


def test_names_of_headers_are_not_echoed_where_they_are_none() -> None:
    odd = PREFLIGHT | {"access-control-request-headers": "a\u00ff; b"}
    reply = access(cors_origins=[PAGE]).preflight("OPTIONS", odd)
    assert reply is not None
    assert "access-control-allow-headers" not in reply.headers


def test_each_key_has_its_own_rate_and_health_costs_nothing() -> None:
    which = access(api_keys=[f"a={KEY}", f"b={OTHER}"], requests_per_minute=1)
    one, two = HOST | {"x-api-key": KEY}, HOST | {"x-api-key": OTHER}
    for _ in range(5):
        which.admit("GET", "/health/ready", one)
    which.admit("GET", "/v1/models", one)
    with pytest.raises(RateLimited) as caught:
        which.admit("GET", "/v1/models", one)
    assert 55 <= caught.value.retry_after_s <= 60
    which.admit("GET", "/v1/models", two)


def test_a_place_is_free_again_once_the_answer_is_sent() -> None:
    which = access(4, api_keys=[f"a={KEY}", f"b={OTHER}"])
    mine = HOST | {"x-api-key": KEY}
    first, _ = (which.admit("POST", "/v1/messages", mine) for _ in range(2))
    with pytest.raises(RateLimited, match="2 requests open at once"):
        which.admit("POST", "/v1/messages", mine)
    first.leave()
    first.leave()
    which.admit("POST", "/v1/messages", mine)
    with pytest.raises(RateLimited):
        which.admit("POST", "/v1/messages", mine)


def test_open_requests_of_one_key_leave_connections_for_other_keys() -> None:
    which = access(8, api_keys=[f"a={KEY}", f"b={OTHER}"])
    one, two = HOST | {"x-api-key": KEY}, HOST | {"x-api-key": OTHER}
    for _ in range(4):
        which.admit("POST", "/v1/messages", one)
    with pytest.raises(RateLimited, match="this key may have 4 requests open at once"):
        which.admit("POST", "/v1/messages", one)
    which.admit("POST", "/v1/messages", two)
    lone = access(8, api_keys=[KEY])
    for _ in range(8):
        lone.admit("POST", "/v1/messages", one)


def test_a_request_that_is_refused_for_its_rate_takes_no_place() -> None:
    which = access(4, api_keys=[f"a={KEY}", f"b={OTHER}"], requests_per_minute=1)
    mine = HOST | {"x-api-key": KEY}
    which.admit("POST", "/v1/messages", mine).leave()
    for _ in range(5):
        with pytest.raises(RateLimited, match="a minute"):
            which.admit("POST", "/v1/messages", mine)
