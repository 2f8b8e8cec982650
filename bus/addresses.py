"""Addresses as text, HOST:PORT, with an IPv6 host in brackets: the one place that makes and reads them, and that says
which of them are one host.

A host stands alone, without brackets, wherever it is a value of its own: in records of the cluster, in messages, in
certificates. Who joins it with a port by hand makes an address that nobody can read for each IPv6 host.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int  # 0: any free one

    def __str__(self) -> str:
        return format_address(self.host, self.port)

    def at_port(self, bound_port: int) -> Address:
        """The address with the port that was bound, if it names none."""
        return self if self.port else Address(self.host, bound_port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def parse_address(text: str, *, port_min: int = 0) -> Address:
    """Raises `ValueError`, which says what was expected and found."""
    host, _, port = text.rpartition(":")
    if ":" in host and not host.startswith("["):
        raise ValueError(f"expected an IPv6 host in brackets, [{host}]:{port}, found {text!r}")
    host = bare_host(host)
    if not host or _PORT.fullmatch(port) is None or not port_min <= int(port) <= 65535:
        raise ValueError(f"expected an address as host:port, found {text!r} (ports are {port_min} to 65535)")
    return Address(host, int(port))


def bare_host(host: str) -> str:
    """Without the brackets that it may have in an address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def counted_host(host: str) -> str:
    """Return what counts as one host wherever callers are bounded by address: an IPv4 address; of IPv6 the /64, since a
    host has a whole one, and would get round every bound by its other addresses. An IPv4 address that is written as
    IPv6 (`::ffff:192.0.2.1`) counts as itself. `host`: also as Kafka prints it, with a slash in front. What is no IP
    address is returned as it is."""
    try:
        ip = ipaddress.ip_address(host.removeprefix("/").partition("%")[0])
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
