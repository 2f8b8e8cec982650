"""Permitted places of an identity provider's documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.security.oauth.token_settings import parse_url, shown_url


@pytest.mark.parametrize(
    "text",
    [
        "https://issuer.example/keys",
        "https://issuer.example:8443/keys?tenant=1",
        "http://127.0.0.1:8080/keys",
        "http://[::1]:8080/keys",
        "http://localhost/keys",
    ],
)
def test_servers_by_tls_and_on_this_machine(text: str) -> None:
    assert parse_url(text).url == text
    assert parse_url(text).path is None


def test_http_to_another_machine_has_to_be_allowed() -> None:
    with pytest.raises(ValueError, match=r"sasl\.oauthbearer[.]allow[.]insecure[.]urls=true"):
        parse_url("http://issuer.example/keys")
    assert parse_url("http://issuer.example/keys", allows_insecure=True).url == "http://issuer.example/keys"


def test_a_file_has_its_whole_path() -> None:
    assert parse_url("file:///run/secrets/my%20token").path == Path("/run/secrets/my token")
    assert parse_url("file://localhost/etc/keys.json").path == Path("/etc/keys.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "issuer.example/keys",
        "/etc/keys.json",
        "ftp://issuer.example/keys",
        "https://",
        "https:///keys",
        "https://issuer.example:port/keys",
        "https://[::1/keys",
        "https://name:hush@issuer.example/keys",
        "file://server/keys.json",
        "file:keys.json",
        "http://localhost.attacker.example/keys",
        "http://127.0.0.1.attacker.example/keys",
        "https://issuer.example/keys?key=hu sh",
        "https://issuer.example/keys?key=hush\n",
    ],
)
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a URL|a file as|https://") as refused:
        parse_url(text)
    assert "hush" not in str(refused.value)


def test_what_is_shown_of_a_place_has_no_query() -> None:
    found = parse_url("https://issuer.example/keys?api_key=hush")
    assert str(found) == "https://issuer.example/keys"
    assert "hush" not in repr(found)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://issuer.example/keys", "https://issuer.example/keys"),
        ("https://issuer.example/keys?key=hush#hush", "https://issuer.example/keys"),
        ("https://name:hush@issuer.example/keys?key=hush@hush", "https://..."),
        ("https://name:hu/s?h@issuer.example/keys", "https://..."),
        ("https://issuer.example/#hush", "https://issuer.example/"),
        ("name:hush@issuer.example", "..."),
        ("", ""),
    ],
)
def test_an_error_repeats_no_secret_of_a_url(text: str, shown: str) -> None:
    assert shown_url(text) == shown
