"""The settings of the broker that are about permissions."""

from __future__ import annotations

import pytest

from bus.security.acl_decisions import AclPolicy
from bus.settings.broker import BrokerConfig
from bus.settings.keys import ConfigError
from bus.settings.loading import load_broker_config


def test_without_an_authorizer_there_is_no_policy() -> None:
    assert BrokerConfig().acl_policy is None


@pytest.mark.parametrize("name", ["acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"])
def test_super_users_are_separated_by_semicolons_as_names_have_commas(name: str) -> None:
    config = load_broker_config(
        overrides={"authorizer.class.name": name, "super.users": "User:root; User:CN=broker,O=Example;"}
    )
    assert config.acl_policy == AclPolicy(frozenset({"User:root", "User:CN=broker,O=Example"}))


def test_what_no_acl_names_may_be_left_open() -> None:
    config = load_broker_config(overrides={"authorizer.class.name": "acl", "allow.everyone.if.no.acl.found": "true"})
    assert config.acl_policy == AclPolicy(allows_unnamed=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"authorizer.class.name": "kafka.security.Other"}, "authorizer.class.name"),
        ({"super.users": "User:root"}, "super.users: expected authorizer.class.name=acl beside it, found none"),
        ({"allow.everyone.if.no.acl.found": "true"}, "expected authorizer.class.name=acl beside it, found none"),
        (
            {"authorizer.class.name": "acl", "super.users": "User:CN=a,O=x, User:CN=b"},
            "super.users: expected semicolons between principals, found 'User:CN=a,O=x, User:CN=b'",
        ),
        (
            {"authorizer.class.name": "acl", "super.users": "root"},
            "super.users: expected a principal User:<name>, found 'root'",
        ),
    ],
)
def test_settings_that_cannot_be_stop_the_start(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_broker_config(overrides=overrides)
