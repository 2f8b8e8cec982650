"""The line of JAAS that Kafka's users bring along."""

from __future__ import annotations

import pytest

from bus.security.scram import parse_jaas

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f'{MODULE} required username="a" password="b";', {"username": "a", "password": "b"}),
        (f"{MODULE} required username='a' password='b c';", {"username": "a", "password": "b c"}),
        (f'{MODULE} REQUIRED\n  clientId="i"\n  scope="x y" ;\n', {"clientId": "i", "scope": "x y"}),
        (f"{MODULE} required username=a password=b", {"username": "a", "password": "b"}),
        (f'{MODULE} required password="q\\"uote;=";', {"password": 'q"uote;='}),
        (f"{MODULE} required;", {}),
    ],
)
def test_options_are_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == options


@pytest.mark.parametrize(
    "text", ["", "hush", f"{MODULE} hush", f"{MODULE} required hush;", f'{MODULE} required a="b" hush;', "a b c=d;"]
)
def test_what_is_none_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError, match="JAAS") as refused:
        parse_jaas(text)
    assert "hush" not in str(refused.value)
