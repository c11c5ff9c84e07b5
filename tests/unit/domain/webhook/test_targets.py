from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.webhook.targets import (
    URL_CHARS_MAX,
    is_allowed,
    parse_target,
    refuse_literal,
    why_refused,
)

PRIVATE_V4 = st.one_of(
    *(
        st.ip_addresses(v=4, network=network)
        for network in (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
            "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
        )
    )
)  # fmt: skip
CARRIERS = [
    IPv6Network(one) for one in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
]


def spelt(value: int, style: str) -> str:
    return {"decimal": f"{value}", "octal": f"0{value:o}", "hex": f"0x{value:x}"}[style]


@st.composite
def spellings(draw: st.DrawFn) -> tuple[IPv4Address, str]:
    """An address that is not public, in one to four numbers of any base."""
    address = draw(PRIVATE_V4)
    assert isinstance(address, IPv4Address)
    raw, count = int(address), draw(st.integers(1, 4))
    numbers = [raw >> (24 - 8 * index) & 0xFF for index in range(count - 1)]
    numbers.append(raw & (256 ** (5 - count) - 1))
    styles = draw(
        st.lists(st.sampled_from(["decimal", "octal", "hex"]), min_size=count, max_size=count)
    )
    text = ".".join(spelt(number, style) for number, style in zip(numbers, styles, strict=True))
    return address, draw(st.sampled_from([text, text.upper().replace("0X", "0x"), text + "."]))


@given(spelling=spellings())
def test_no_spelling_of_an_address_hides_that_it_is_not_public(
    spelling: tuple[IPv4Address, str],
) -> None:
    address, text = spelling
    target = parse_target(f"http://{text}:8080/x")
    assert target.address == address
    assert target.host == str(address)
    with pytest.raises(InvalidRequest, match=str(address)):
        refuse_literal(target, ())


@given(inner=PRIVATE_V4, carrier=st.sampled_from(CARRIERS))
def test_ipv6_that_carries_such_an_address_is_refused(
    inner: IPv4Address, carrier: IPv6Network
) -> None:
    outer = IPv6Address(int(carrier.network_address) | int(inner))
    assert why_refused(outer)
    with pytest.raises(InvalidRequest):
        refuse_literal(parse_target(f"https://[{outer}]/"), ())


@given(address=st.ip_addresses())
def test_an_address_passes_only_if_python_calls_it_global(
    address: IPv4Address | IPv6Address,
) -> None:
    if why_refused(address) is None and not any(
        isinstance(address, IPv6Address) and address in carrier for carrier in CARRIERS
    ):
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://0x7f.1/",
        "http://0/",
        "http://0x/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://a.localhost/",
        "http://169.254.169.254/latest/meta-data/",
        "http://100.100.100.200/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fd00:ec2::254]/",
        "http://[fe80::1]/",
        "http://[fe80::1%25eth0]/",
        "http://[ff02::1]/",
        "http://[fec0::1]/",
        "http://[2002:7f00:1::]/",
        "http://[2001:0:7f00:1::]/",
        "http://[64:ff9b:1::7f00:1]/",
    ],
)
def test_well_known_ways_in_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        refuse_literal(parse_target(url), ())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.com/",
        "file:///etc/passwd",
        "//example.com/",
        "https:///x",
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://exa mple.com/",
        "https://example.com/\r\nhost: other",
        "https://example.com\\@127.0.0.1/",
        "https://\uff11\uff12\uff17.0.0.1/",
        "https://bücher.example/",
        "https://1.2.3.4.5/",
        "https://1.2.3.256/",
        "https://256.1/",
        "https://4294967296/",
        "https://09.0.0.1/",
        "https://example.0x7f/",
        "https://[1.2.3.4]/",
        "https://[::1/",
        "https://-a.example/",
        "https://a..example/",
        "https://example.com/" + "a" * 2048,
    ],
)
def test_what_is_no_such_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_target(url)


def test_public_names_and_addresses_pass() -> None:
    for url, authority, path in (
        ("https://Hooks.Example.com./a?b=c", "hooks.example.com", "/a?b=c"),
        ("http://example.com:8080", "example.com:8080", "/"),
        ("https://93.184.216.34/", "93.184.216.34", "/"),
        ("https://[2606:4700:4700::1111]:444/x", "[2606:4700:4700::1111]:444", "/x"),
        ("https://[64:ff9b::5db8:d822]/", "[64:ff9b::5db8:d822]", "/"),
    ):
        target = parse_target(url)
        refuse_literal(target, ())
        assert (target.authority, target.path) == (authority, path)


def test_a_host_that_the_operator_names_may_be_anywhere() -> None:
    target = parse_target("http://0177.1:8080/")
    for allowed in ("127.0.0.1", "127.0.0.1:8080"):
        refuse_literal(target, [allowed])
    for other in ("127.0.0.1:81", "127.0.0.2", "127.1"):
        assert not is_allowed(target, [other])
    assert is_allowed(parse_target("https://[::1]/"), ["::1"])
    assert is_allowed(parse_target("https://[::1]:5/"), ["[::1]:5"])


def test_link_local_zones_are_refused_whatever_they_carry() -> None:
    assert why_refused(ip_address("2606:4700::1%eth0"))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "a loopback address"),
        ("::1", "a loopback address"),
        ("::ffff:127.0.0.1", "a loopback address"),
        ("169.254.169.254", "a link-local address"),
        ("fe80::1", "a link-local address"),
        ("2606:4700::1%eth0", "a link-local address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("10.0.0.1", "a private address"),
        ("fd00::1", "a private address"),
        ("100.64.0.1", "not a public address"),
        ("2002:7f00:1::", "not a public address"),
        ("4000::1", "not a public address"),
        ("93.184.216.34", None),
        ("2606:4700:4700::1111", None),
    ],
)
def test_client_reads_why_an_address_is_refused(address: str, why: str | None) -> None:
    assert why_refused(ip_address(address)) == why


def test_refused_host_is_named_with_the_setting_that_allows_it() -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_literal(parse_target("http://127.1/"), ())
    wanted = "127.0.0.1 is a loopback address, and is not in webhooks.allow_hosts"
    assert caught.value.message == wanted


def test_longest_url_and_the_longest_name_pass() -> None:
    url = "https://example.com/"
    longest = url + "a" * (URL_CHARS_MAX - len(url))
    assert parse_target(longest).path == longest.removeprefix("https://example.com")
    with pytest.raises(InvalidRequest, match="at most 2048 characters"):
        parse_target(longest + "a")
    name = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 61])
    assert parse_target(f"https://{name}/").host == name
    with pytest.raises(InvalidRequest, match="has no host"):
        parse_target(f"https://{name}d/")


def test_url_that_cannot_be_split_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidRequest, match="is no URL: Port"):
        parse_target("https://example.com:99999/")
