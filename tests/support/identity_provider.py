"""An identity provider of OpenID Connect for tests: on loopback, with keys of its own making, obedient and faulty."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "bus"


def new_private_key(algorithm: str) -> Any:
    """Return a key for one of RFC 7518's names."""
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
    if algorithm in curves:
        return ec.generate_private_key(curves[algorithm])
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def jwk_of(private_key: Any, key_id: str | None = None, **more: Any) -> dict[str, Any]:
    """The public half, as a key set has it."""
    kinds = {
        rsa.RSAPrivateKey: RSAAlgorithm,
        ec.EllipticCurvePrivateKey: ECAlgorithm,
        ed25519.Ed25519PrivateKey: OKPAlgorithm,
    }
    made_by: Any = next(made_by for kind, made_by in kinds.items() if isinstance(private_key, kind))
    found: dict[str, Any] = made_by.to_jwk(private_key.public_key(), as_dict=True)
    return {**found, **({} if key_id is None else {"kid": key_id}), "use": "sig", **more}


def key_set(*keys: Mapping[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims_of(name: str = "alice", *, life_s: float = 300, **more: Any) -> dict[str, Any]:
    """`more`: other claims; None takes one away."""
    now_s = time.time()
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now_s, "exp": now_s + life_s, **more}
    return {claim: value for claim, value in claims.items() if value is not None}


def signed(private_key: Any, claims: Mapping[str, Any], *, algorithm: str = "ES256", key_id: str | None = "one") -> str:
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.PyJWS().encode(json.dumps(claims).encode(), private_key, algorithm, headers)


def forged(claims: Any, header: Mapping[str, Any], secret: bytes | None = None) -> str:
    """Return a token forged without a private key. `secret`: the key of an HMAC."""
    parts = [_base64url(json.dumps(part).encode()) for part in (header, claims)]
    message = ".".join(parts)
    signature = b"" if secret is None else hmac.digest(secret, message.encode(), hashlib.sha256)
    return f"{message}.{_base64url(signature)}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class IdentityProvider:
    """Its state may be changed while it serves: `status` of its answers, the keys, what it answers instead (`body`).
    `clients`: their ids and secrets; `client_keys`: ids and public keys of those that show assertions, each algorithm
    and audience being right; `assertions`: header and claims of those that were accepted."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        self.keys: dict[str, Any] = {}
        self.clients = {"loader": "s3cret of the loader"}
        self.client_keys: dict[str, Any] = {}
        self.assertions: list[dict[str, Any]] = []
        self.status = 200
        self.body: bytes | None = None
        self.location = ""
        self.life_s = 300.0
        self.key_requests = 0
        self.token_requests: list[dict[str, list[str]]] = []
        self.asked = threading.Event()
        self.add_key("one")

    def add_key(self, key_id: str) -> None:
        self.keys[key_id] = new_private_key("ES256")

    def token(self, name: str = "alice", *, key_id: str = "one", life_s: float = 300, **claims: Any) -> str:
        return signed(self.keys[key_id], claims_of(name, life_s=life_s, **claims), key_id=key_id)

    def answer(self, method: str, path: str, authorization: str, form: bytes) -> tuple[int, bytes]:
        if path == "/keys":
            self.key_requests += 1
        self.asked.set()
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b"{}"
        if (method, path) == ("GET", "/keys"):
            return 200, key_set(*(jwk_of(key, key_id) for key_id, key in self.keys.items()))
        if (method, path) == ("POST", "/token"):
            return self._answer_client(authorization, parse_qs(form.decode()))
        return 404, b"{}"

    def _answer_client(self, authorization: str, form: dict[str, list[str]]) -> tuple[int, bytes]:
        self.token_requests.append(form)
        if "client_assertion" in form:
            return self._answer_assertion(form)
        client_id, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if self.clients.get(client_id) != secret or form.get("grant_type") != ["client_credentials"]:
            said = {"error": "invalid_client", "error_description": f"who is {client_id}, and what is {secret}?"}
            return 401, json.dumps(said).encode()
        scope = {"scope": " ".join(form["scope"])} if "scope" in form else {}
        token = self.token(client_id, life_s=self.life_s, **scope)
        return 200, json.dumps({"access_token": token, "token_type": "bearer", "expires_in": self.life_s}).encode()

    def _answer_assertion(self, form: dict[str, list[str]]) -> tuple[int, bytes]:
        """Answer an assertion by RFC 7523."""
        [assertion] = form["client_assertion"]
        try:
            assert form["grant_type"] == ["client_credentials"]
            assert form["client_assertion_type"] == ["urn:ietf:params:oauth:client-assertion-type:jwt-bearer"]
            client_id = jwt.decode(assertion, options={"verify_signature": False})["sub"]
            assert form.get("client_id", [client_id]) == [client_id]
            claims = jwt.decode(
                assertion,
                self.client_keys[client_id],
                algorithms=["RS256", "PS256", "ES256"],
                audience=f"{self.url}/token",
                issuer=client_id,
                options={"require": ["exp", "iat", "sub"]},
            )
            assert claims.get("jti") not in {one["claims"].get("jti") for one in self.assertions} - {None}
        except (jwt.InvalidTokenError, AssertionError, KeyError) as error:
            said = {"error": "invalid_client", "error_description": f"{type(error).__name__} of {assertion}"}
            return 401, json.dumps(said).encode()
        self.assertions.append({"header": jwt.get_unverified_header(assertion), "claims": claims})
        token = self.token(client_id, life_s=self.life_s)
        return 200, json.dumps({"access_token": token, "token_type": "bearer", "expires_in": self.life_s}).encode()


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    provider = IdentityProvider(server)
    server.provider = provider  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="identity provider")
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, form: bytes) -> None:
        provider: IdentityProvider = self.server.provider  # type: ignore[attr-defined]
        status, body = provider.answer(self.command, self.path, self.headers.get("Authorization", ""), form)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if provider.location:
            self.send_header("Location", provider.location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass
