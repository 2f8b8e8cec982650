"""Certificates for gRPC: what a listener shows, what a connection to another broker shows, and who a caller is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from bus.broker_api.certificate_principals import Certificate, NoPrincipal, PrincipalRules
from bus.broker_api.pipeline import before
from bus.runtime.logs import principal
from bus.security.key_material import KeyMaterial, WatchedKeyMaterial


def listener_credentials(watched: WatchedKeyMaterial, *, needs_client_certificate: bool) -> grpc.ServerCredentials:
    """Each new connection gets the material of its time; those that are open go on."""
    shown = watched.current

    def fetch() -> Any:  # in a thread of gRPC's
        nonlocal shown
        if watched.current is shown:
            return None
        shown = watched.current
        return _configuration(shown, needs_client_certificate)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown, needs_client_certificate), fetch, needs_client_certificate
    )


def _configuration(material: KeyMaterial, needs_client_certificate: bool) -> Any:
    # Roots without the demand of a certificate would have gRPC ask for one and show it to nobody.
    roots = material.trusted if needs_client_certificate else None
    return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], root_certificates=roots)


def channel_credentials(material: KeyMaterial) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(material.trusted, material.key, material.chain)


def with_principal(
    handle: Callable[..., Any], method: str, *, rules: PrincipalRules, on_known: Callable[[str], object]
) -> Callable[..., Any]:
    """The same handler, a coroutine or an async generator, for callers that have shown a certificate: it runs with
    their principal, or ends with UNAUTHENTICATED if no rule has one for them. `on_known` is called with the peer of a
    connection whose caller is known."""

    async def recognise(_: Any, context: grpc.aio.ServicerContext) -> None:
        await _recognise(context, rules, on_known)

    return before(recognise)(handle)


async def _recognise(
    context: grpc.aio.ServicerContext, rules: PrincipalRules, on_known: Callable[[str], object]
) -> None:
    found = rules.principal_of(_certificate(context.auth_context()))
    if isinstance(found, NoPrincipal):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, found.reason)
        raise AssertionError("abort raises")
    on_known(context.peer())
    principal.set(found)


def _certificate(shown: Mapping[str, Iterable[bytes]]) -> Certificate:
    """Make a certificate of what a peer has shown, by gRPC's names."""
    subject = next(iter(shown.get("x509_subject", ())), b"")
    uris = tuple(uri.decode("utf-8", "replace") for uri in shown.get("peer_uri", ()))
    return Certificate(subject.decode("utf-8", "replace"), uris)
