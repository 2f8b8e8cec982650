"""Names of certificates as principals, by Kafka's rules; the examples are those of KIP-371."""

from __future__ import annotations

import pytest

from bus.config.keys import ConfigError
from bus.config.principals import PrincipalRules

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
        ("RULE:CN=([a-z]+)/$1/", None),  # the whole name has to match
        ("RULE:^CN=(.*?),.*$/a\\/b/", "User:a\\/b"),
    ],
)
def test_first_rule_that_matches_the_whole_name_decides(rules: str, principal: str | None) -> None:
    assert PrincipalRules(rules).principal_of(NAME) == principal


@pytest.mark.parametrize(
    "rules", ["", "default", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "DEFAULT;DEFAULT", "RULE:a/b/X"]
)
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match="expected DEFAULT or RULE:pattern/replacement/"):
        PrincipalRules(rules)
