"""Sources of the tokens of clients: files, a token endpoint, functions; and when new tokens are fetched."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from bus.errors import BusError, ErrorCode
from bus.security.oauth.token_settings import TokenSettings, parse_url
from bus.security.oauth.token_sources import TokenSource
from tests.support.identity_provider import IdentityProvider, identity_provider

SECRET = "s3cret of the loader"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def endpoint(provider: IdentityProvider, **more: Any) -> TokenSettings:
    given = {"client_id": "loader", "client_secret": SECRET, **more}
    return TokenSettings(parse_url(f"{provider.url}/token"), **given)


def refused(source: TokenSource) -> BusError:
    with pytest.raises(BusError) as caught:
        source.token(5_000)
    error = caught.value
    shown = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert SECRET not in shown
    assert quote_plus(SECRET) not in shown
    return error


def test_a_token_is_got_by_client_credentials_and_shown_until_most_of_its_life_is_over(
    provider: IdentityProvider,
) -> None:
    clock = Clock()
    source = TokenSource(endpoint(provider, scope="read write"), clock)
    first = source.token(5_000)
    assert provider.token_requests == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]
    clock.now_s += 0.65 * provider.life_s
    assert source.token(5_000) == first
    clock.now_s += 0.06 * provider.life_s
    assert source.token(5_000) != first
    assert len(provider.token_requests) == 2


def test_a_token_that_a_broker_has_refused_is_not_shown_again(provider: IdentityProvider) -> None:
    source = TokenSource(endpoint(provider))
    first = source.token(5_000)
    source.forget("another one")
    assert source.token(5_000) == first
    source.forget(first)
    assert source.token(5_000) != first


def test_while_the_endpoint_is_down_the_token_is_shown_as_long_as_it_holds(
    provider: IdentityProvider, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    source = TokenSource(endpoint(provider), clock)
    first = source.token(5_000)
    provider.status = 503
    clock.now_s += 0.9 * provider.life_s
    asked = len(provider.token_requests)
    for _ in range(5):
        assert source.token(5_000) == first
    assert caplog.text.count("no new token could be obtained, the earlier one is valid for another 30 s") == 1
    clock.now_s += 0.2 * provider.life_s
    error = refused(source)
    assert (error.code, error.retriable) == (ErrorCode.NETWORK_EXCEPTION, True)
    assert "HTTP status 503" in error.message
    provider.status = 200
    assert source.token(5_000) != first
    assert len(provider.token_requests) == asked + 1
    assert first not in caplog.text
    assert SECRET not in caplog.text


def test_a_secret_may_be_in_a_file_which_is_read_for_each_token(provider: IdentityProvider, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    source = TokenSource(endpoint(provider, client_secret="", client_secret_file=file))
    assert "the secret cannot be read" in refused(source).message
    file.write_text(f"{SECRET}\n")
    source.forget(source.token(5_000))
    provider.clients["loader"] = "another one"
    assert refused(source).code is ErrorCode.SASL_AUTHENTICATION_FAILED
    file.write_text("another one")
    assert source.token(5_000)


def test_id_and_secret_go_as_they_are_or_url_encoded(provider: IdentityProvider) -> None:
    provider.clients = {"the loader": "100 % s3cret"}
    assert TokenSource(endpoint(provider, client_id="the loader", client_secret="100 % s3cret")).token(5_000)
    provider.clients = {"the+loader": "100+%25+s3cret"}
    encoded = endpoint(provider, client_id="the loader", client_secret="100 % s3cret", encodes_header=True)
    assert TokenSource(encoded).token(5_000)


def test_a_client_that_the_provider_does_not_know_is_told_what_it_says_but_no_secret(
    provider: IdentityProvider,
) -> None:
    error = refused(TokenSource(endpoint(provider, client_id="nobody")))  # the provider repeats the secret
    assert error.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert not error.retriable
    assert error.message.endswith("/token: HTTP status 401")
    provider.status, provider.body = 400, b'{"error": "invalid_scope", "error_description": "no\\nsuch scope"}'
    assert refused(TokenSource(endpoint(provider))).message.endswith("HTTP status 400: invalid_scope no such scope")
    provider.status, provider.body = 429, b"slowly"
    assert refused(TokenSource(endpoint(provider))).retriable


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b'{"access_token": ""}',
        b'{"access_token": 7}',
        b'{"access_token": "two words"}',
        b'{"access_token": "a\\u0001b"}',
        b'{"access_token": "abc", "token_type": "mac"}',
        b'{"access_token": "abc", "token_type": 7}',
    ],
)
def test_what_is_no_token_is_refused(provider: IdentityProvider, body: bytes) -> None:
    provider.body = body or b" "
    error = refused(TokenSource(endpoint(provider)))
    assert "expected" in error.message
    assert "words" not in error.message


def test_without_a_lifetime_that_of_the_token_counts(provider: IdentityProvider) -> None:
    source = TokenSource(endpoint(provider))
    provider.body = f'{{"access_token": "{provider.token(life_s=300)}"}}'.encode()
    assert source.token(5_000) == source.token(5_000)
    assert provider.asked.is_set()
    opaque = TokenSource(endpoint(provider))
    provider.body = b'{"access_token": "abc", "expires_in": "many"}'
    assert opaque.token(5_000) == "abc"
    provider.body = b'{"access_token": "def"}'
    assert opaque.token(5_000) == "def"


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    source = TokenSource(TokenSettings(parse_url(file.as_uri())))
    assert "the token cannot be read" in refused(source).message
    file.write_text("first\n")
    assert source.token(5_000) == "first"
    file.write_text("second")
    assert source.token(5_000) == "second"
    file.write_text("not a token")
    error = refused(source)
    assert "expected a token of letters" in error.message
    assert "not a token" not in error.message


def test_a_function_gives_a_token_and_may_say_when_it_expires() -> None:
    clock, given = Clock(), [("one", 1_000_100.0), ("two", 1_000_200.0)]
    source = TokenSource(TokenSettings(provider=iter(given).__next__), clock)
    assert [source.token(5_000), source.token(5_000)] == ["one", "one"]
    clock.now_s += 71
    assert source.token(5_000) == "two"
    numbers = iter("abc")
    opaque = TokenSource(TokenSettings(provider=lambda: next(numbers)), clock)
    assert [opaque.token(5_000), opaque.token(5_000)] == ["a", "b"]


@pytest.mark.parametrize("found", [None, 7, b"abc", ("abc",), ("abc", "soon"), (None, 3), "", "two words", ["abc", 3]])
def test_a_function_that_gives_something_else_is_told(found: Any) -> None:
    error = refused(TokenSource(TokenSettings(provider=lambda: found)))
    assert "sasl_oauth_token_provider" in error.message
    assert not error.retriable


@pytest.mark.parametrize(("error", "is_retriable"), [(OSError("away"), True), (ValueError("wrong"), False)])
def test_a_function_that_fails_is_named_with_its_error_behind(error: Exception, is_retriable: bool) -> None:
    def fail() -> str:
        raise error

    caught = refused(TokenSource(TokenSettings(provider=fail)))
    assert caught.retriable is is_retriable
    assert caught.__cause__ is error


def test_logins_that_begin_together_share_one_token() -> None:
    began, go_on, calls = threading.Event(), threading.Event(), []

    def provide() -> tuple[str, float]:
        calls.append("called")
        began.set()
        go_on.wait(30)
        return "abc", 1_000_100.0

    source = TokenSource(TokenSettings(provider=provide), Clock())
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(source.token(30_000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert began.wait(30)
    with pytest.raises(BusError, match="did not come in time") as late:
        source.token(10)
    assert late.value.retriable
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == ["abc"] * 8
    assert calls == ["called"]


def test_nothing_secret_is_in_a_repr(provider: IdentityProvider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = endpoint(provider)
    source = TokenSource(settings)
    token = source.token(5_000)
    for shown in (repr(settings), repr(source), repr(source._held), caplog.text):
        assert SECRET not in shown
        assert token not in shown
