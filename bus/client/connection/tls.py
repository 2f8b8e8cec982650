"""TLS of a client: what its connections show and trust, and what a failed handshake means for a user.

gRPC says of most refusals no more than that the socket was closed; so the listener is asked once, by a handshake that
trusts everybody and sends nothing, whether it speaks TLS at all.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import grpc

from bus.addresses import parse_address
from bus.client.config.security import Security
from bus.errors import BusError, ErrorCode

if TYPE_CHECKING:
    from bus.key_material import WatchedKeyMaterial

_PROBE_TIMEOUT_S = 1.0
_NOT_TRUSTED = (
    "this client does not trust the authority that signed the broker's certificate: set ssl_ca_location to the file of "
    "that authority"
)
# What gRPC's details have in them, and what it means.
_REASONS = (
    ("certificate has expired", "the broker's certificate has expired"),
    ("certificate is not yet valid", "the broker's certificate is not valid yet; is the clock of this machine right?"),
    ("certificate_verify_failed", _NOT_TRUSTED),
    ("certificate signature failure", _NOT_TRUSTED),  # an authority of the same name, with another key
    (
        "hostname verification check failed",
        "the broker's certificate is for another host: connect by a name that is in it",
    ),
    ("wrong_version_number", "the listener speaks no TLS: set security_protocol to PLAINTEXT, or take another port"),
)


class ChannelSecurity:
    """Of all connections of a client. Files that change are used by the next connection."""

    def __init__(self, security: Security) -> None:
        """Raises `BusError` INVALID_CONFIG for files that cannot be used."""
        self.security = security
        self._watched: WatchedKeyMaterial | None = None
        if not security.has_tls:
            return
        from bus.key_material import KeyMaterialFault, WatchedKeyMaterial

        try:
            self._watched = WatchedKeyMaterial(security.files)
        except KeyMaterialFault as fault:
            raise BusError(ErrorCode.INVALID_CONFIG, str(fault)) from None

    def open_channel(self, address: str, options: list[tuple[str, object]]) -> grpc.Channel:
        if self._watched is None:
            return grpc.insecure_channel(address, options=options)
        self._watched.look()
        material = self._watched.current
        credentials = grpc.ssl_channel_credentials(material.trusted, material.key, material.chain)
        return grpc.secure_channel(address, credentials, options=options)

    def explain(self, address: str, details: str) -> str | None:
        """Why a connection that could not be made will not be made later either; None if that is not known."""
        found = details.lower()
        for sign, reason in _REASONS:
            if sign in found:
                return reason
        if "ssl_error_ssl" in found:
            return f"the TLS handshake failed: {details}"
        if "socket closed" not in found or not speaks_tls(address):
            return None
        if not self.security.has_tls:
            return "the listener expects TLS: set security_protocol to SSL, or SASL_SSL with a login"
        if self.security.files.certificate is None:
            return "the listener expects a certificate of the client: set ssl_certificate_location and ssl_key_location"
        return (
            "the broker has refused the certificate of this client: is it of an authority that the broker trusts "
            "(ssl.truststore.location), and valid?"
        )


def speaks_tls(address: str) -> bool:
    """Whether a TLS handshake at the address gets as far as the server's certificate; False if nothing answers."""
    found = parse_address(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((found.host, found.port), timeout=_PROBE_TIMEOUT_S) as connection,
            context.wrap_socket(connection),
        ):
            return True
    except OSError:  # ssl.SSLError, too: another protocol
        return False
