"""Names of certificates as principals, by Kafka's rules; the examples are those of KIP-371."""

from __future__ import annotations

import re

import pytest

from bus.broker_api.certificate_principals import NAME_CHARACTERS_MAX, Certificate, NoPrincipal, PrincipalRules
from bus.settings.keys import ConfigError

NAME = "CN=kafka-server,OU=Bus\\, Ltd,C=DE"


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", f"User:{NAME}"),
        ("RULE:^CN=(.*?),OU=.*$/$1/", "User:kafka-server"),
        ("RULE:^CN=(.*?),OU=.*$/$1@$1/U", "User:KAFKA-SERVER@KAFKA-SERVER"),
        ("RULE:^CN=(.*?),.*$/X-$1/L, DEFAULT", "User:x-kafka-server"),
        ("RULE:^OU=(.*?),.*$/$1/, RULE:^.*C=([A-Z]{2})$/$1/", "User:DE"),
        ("RULE:^OU=(.*?)$/$1/,DEFAULT", f"User:{NAME}"),
        ("RULE:^CN=(.*?),.*$/a\\/b/", "User:a\\/b"),
    ],
)
def test_first_rule_that_matches_the_whole_name_decides(rules: str, principal: str | None) -> None:
    assert PrincipalRules(rules).principal_of(Certificate(NAME)) == principal


def test_certificate_that_no_rule_is_about_is_nobody() -> None:
    for rules, shown, said in (
        ("RULE:CN=([a-z]+)/$1/", Certificate(NAME), "no rule .* of 'CN=kafka-server"),  # the whole name has to match
        ("DEFAULT", Certificate(""), "no rule of ssl.principal.mapping.rules is about a certificate of ''$"),
        ("RULE:.*/x/", Certificate(""), "no rule"),
        ("SPIFFE", Certificate(NAME), "no rule"),
        ("SPIFFE:bus.example", Certificate(NAME, ("spiffe://other/a",)), "and the URI 'spiffe://other/a'"),
        ("RULE:^CN=(.*?),.*$/$1/", Certificate("CN=ANONYMOUS,O=Example"), "make the name 'ANONYMOUS' of a certificate"),
        ("RULE:^CN=(.*?),.*$/$1/,DEFAULT", Certificate("CN=*,O=Example"), "make the name '[*]'"),
        ("RULE:^CN=(.*?),.*$/$1/", Certificate("CN=,O=Example"), "make the name ''"),
        ("RULE:^CN=(x)?.*$/$1/", Certificate(NAME), "make the name ''"),
    ):
        found = PrincipalRules(rules).principal_of(shown)
        assert isinstance(found, NoPrincipal)
        assert re.search(said, found.reason)


@pytest.mark.parametrize(
    ("rules", "uris", "principal"),
    [
        ("SPIFFE", ("spiffe://bus.example/billing/a",), "User:spiffe://bus.example/billing/a"),
        ("SPIFFE:bus.example", ("spiffe://bus.example/billing",), "User:spiffe://bus.example/billing"),
        ("SPIFFE:other,SPIFFE:bus.example", ("spiffe://bus.example/x",), "User:spiffe://bus.example/x"),
        ("RULE:^CN=x$/x/, SPIFFE ,DEFAULT", ("spiffe://bus.example/x",), "User:spiffe://bus.example/x"),
        ("DEFAULT,SPIFFE", ("spiffe://bus.example/x",), f"User:{NAME}"),
        ("SPIFFE,DEFAULT", (), f"User:{NAME}"),
        ("SPIFFE,DEFAULT", ("https://bus.example/x",), f"User:{NAME}"),
        ("SPIFFE,DEFAULT", ("https://bus.example/x", "https://bus.example/y"), f"User:{NAME}"),
        ("SPIFFE:bus.example,DEFAULT", ("spiffe://foreign.example/x",), f"User:{NAME}"),
        ("SPIFFE:bus.example", ("spiffe://bus.example.evil/x",), None),
        ("SPIFFE,DEFAULT", ("spiffe://bus.example/x", "spiffe://bus.example/y"), None),
        ("SPIFFE,DEFAULT", ("https://bus.example/x", "spiffe://bus.example/y"), None),
        ("DEFAULT,SPIFFE", ("SPIFFE://bus.example/x", "spiffe://bus.example/y"), None),
        ("DEFAULT", ("spiffe://bus.example/x", "spiffe://bus.example/y"), f"User:{NAME}"),
        *(
            ("SPIFFE", (uri,), None)
            for uri in (
                "spiffe://bus.example",  # of an authority, not of a workload
                "spiffe://bus.example/",
                "spiffe://bus.example/a//b",
                "spiffe://bus.example/../admin",
                "spiffe://Bus.example/x",
                "SPIFFE://bus.example/x",
                "spiffe://user@bus.example/x",
                "spiffe://bus.example:443/x",
                "spiffe://bus.example/x?y",
                "spiffe://bus.example/x\n",
                "spiffe:///x",
                "spiffe://bus.example/" + "x" * 2_048,
            )
        ),
    ],
)
def test_spiffe_id_is_the_only_uri_of_a_certificate_and_of_the_domain_that_is_asked_for(
    rules: str, uris: tuple[str, ...], principal: str | None
) -> None:
    found = PrincipalRules(rules).principal_of(Certificate(NAME, uris))
    assert (None if isinstance(found, NoPrincipal) else found) == principal


def test_spiffe_id_needs_no_distinguished_name() -> None:
    shown = Certificate("", ("spiffe://bus.example/x",))
    assert PrincipalRules("SPIFFE").principal_of(shown) == "User:spiffe://bus.example/x"


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "default",
        "RULE:a/b",
        "RULE:(/b/",
        "RULE:a/$1/",
        "RULE:a)|(b/c/",
        "RULE:(a)(?=b)/$1/",
        "RULE:(a)\\1/$1/",
        "DEFAULT;DEFAULT",
        "RULE:a/b/X",
        "SPIFFE:",
        "SPIFFE:A",
        "SPIFFE:a/b",
    ],
)
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"expected DEFAULT, SPIFFE, SPIFFE:trust.domain or RULE:pattern/"):
        PrincipalRules(rules)


@pytest.mark.parametrize(
    "pattern", ["(a+)+", "(a|a)*", "(a|aa)+$", "(.*a){20}", "(.*?),(.*?),(.*?),(.*?),(.*?),(.*?),(.*?),(.*?)x"]
)
def test_no_name_takes_a_pattern_more_than_a_moment(pattern: str) -> None:
    """An engine that goes back would need days for each."""
    shown = Certificate("a" * 1_000 + "," * 1_000 + "b")
    assert isinstance(PrincipalRules(f"RULE:{pattern}/x/").principal_of(shown), NoPrincipal)


def test_a_name_without_end_has_no_principal() -> None:
    longest = "a" * NAME_CHARACTERS_MAX
    assert PrincipalRules("DEFAULT").principal_of(Certificate(longest)) == f"User:{longest}"
    found = PrincipalRules("DEFAULT").principal_of(Certificate(f"{longest}a"))
    assert found == NoPrincipal("expected a certificate whose name has at most 2048 characters, found 2049")


def test_a_backslash_in_a_replacement_is_no_group() -> None:
    assert PrincipalRules("RULE:(a)b/\\1$1$0/").principal_of(Certificate("ab")) == "User:\\1aab"
