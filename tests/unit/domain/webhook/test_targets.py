from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

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

#: The special-purpose registries of IANA (iana-ipv4-special-registry, iana-ipv6-special-registry):
#: blocks that are not globally reachable, or whose addresses embed or anycast to others.
NOT_PUBLIC_V4 = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32",
)  # fmt: skip
NOT_PUBLIC_V6 = (
    "::/128", "::1/128", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/32", "2001:2::/48",
    "2001:10::/28", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7",
    "fe80::/10", "fec0::/10", "ff00::/8",
)  # fmt: skip
#: Blocks of the same registries that are globally reachable.
PUBLIC = (
    "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "2620:4f:8000::/48",
)  # fmt: skip
PRIVATE_V4 = st.one_of(*(st.ip_addresses(v=4, network=network) for network in NOT_PUBLIC_V4))
CARRIERS = [
    IPv6Network(one) for one in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
]


@pytest.mark.parametrize("block", [*NOT_PUBLIC_V4, *NOT_PUBLIC_V6])
def test_special_purpose_blocks_are_refused_from_their_first_to_their_last_address(
    block: str,
) -> None:
    network = ip_network(block)
    for address in (network[0], network[-1]):
        assert why_refused(address), address
        host = str(address) if address.version == 4 else f"[{address}]"
        with pytest.raises(InvalidRequest):
            refuse_literal(parse_target(f"http://{host}:8080/x"), ())


@pytest.mark.parametrize("block", PUBLIC)
def test_special_purpose_blocks_that_are_public_pass(block: str) -> None:
    network = ip_network(block)
    assert why_refused(network[0]) is None
    assert why_refused(network[-1]) is None


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
    target = parse_target("http://127.0.0.1:8080/")
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
        refuse_literal(parse_target("http://127.0.0.1/"), ())
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
