from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bus.addresses import Address, bare_host, counted_host, format_address, parse_address

REPOSITORY = Path(__file__).parents[2]
# A host and a port that are joined, or an address that is taken apart, other than by `bus.addresses`.
BY_HAND = re.compile(
    r"""host\}:\{|host\)?\s*\+\s*":"|address\w*\.r?(partition|split|rsplit)\(":"|\.strip\("\[\]"\)|f"\[\{[a-z_.]*host"""
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("a:1", "a", 1),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:9094", "::1", 9094),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ],
)
def test_address_is_read_and_made_as_the_same_text(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert str(Address(host, port)) == text


def test_host_in_brackets_has_no_second_ones() -> None:
    assert format_address("[::1]", 1) == "[::1]:1"
    assert bare_host("[::1]") == bare_host("::1") == "::1"


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:x", "a:-1", "a:65536", "a:٣", "[]:1", "a:1:2x"])
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected an "):
        parse_address(text)


def test_ipv6_host_without_brackets_is_refused_with_the_address_that_was_meant() -> None:
    with pytest.raises(ValueError, match=r"expected an IPv6 host in brackets, \[::1\]:9094, found '::1:9094'"):
        parse_address("::1:9094")


def test_no_other_module_makes_or_reads_addresses() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "bus/*.py"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked.stdout.split()
        if name != "bus/addresses.py"
        for number, line in enumerate((REPOSITORY / name).read_text().splitlines(), 1)
        if BY_HAND.search(line)
    ]
    assert not found


@pytest.mark.parametrize(
    ("hosts", "counted"),
    [
        (["192.0.2.1", "/192.0.2.1", "::ffff:192.0.2.1", "/::ffff:c000:201"], "192.0.2.1"),
        (["2001:db8::1", "/2001:DB8:0:0:ffff:ffff:ffff:ffff", "2001:db8:0:0:1::%eth0"], "2001:db8::/64"),
        (["::1"], "::/64"),
        (["/unix:@broker", "/unix:@broker"], "/unix:@broker"),
    ],
)
def test_addresses_that_one_host_may_have_count_as_one(hosts: list[str], counted: str) -> None:
    assert {counted_host(host) for host in hosts} == {counted}


def test_neighbours_count_as_two_hosts() -> None:
    assert counted_host("192.0.2.1") != counted_host("192.0.2.2")
    assert counted_host("2001:db8:0:1::1") != counted_host("2001:db8:0:2::1")
