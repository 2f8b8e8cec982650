"""The settings of the broker that are about permissions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.authorization.decisions import AclPolicy
from bus.broker import warnings_of_access
from bus.config.broker import BrokerConfig, load_broker_config
from bus.config.keys import ConfigError


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


OPEN = BrokerConfig(
    listeners=("PLAINTEXT://127.0.0.1:1", "FAR://10.0.0.1:2", "SSL://10.0.0.1:3", "SASL_SSL://10.0.0.1:4"),
    listener_security_protocol_map=("FAR:PLAINTEXT",),
    listener_overrides={"SSL": {"ssl.client.auth": "required"}},
)


def test_an_authorizer_that_is_hardly_meant_is_warned_of() -> None:
    assert warnings_of_access(OPEN, has_acls=False) == []
    config = replace(OPEN, authorizer_class_name="acl")
    text = "listener FAR at 10.0.0.1:2 is without authentication: "
    text += "to ACLs, everyone who comes there from other machines is "
    assert warnings_of_access(config, has_acls=True) == [f"{text}User:ANONYMOUS"]
    [nothing, _] = warnings_of_access(config, has_acls=False)
    assert nothing.startswith("there are neither ACLs nor super.users")
    anonymous = replace(config, super_users="User:ANONYMOUS")
    assert warnings_of_access(anonymous, has_acls=False) == [f"{text}User:ANONYMOUS, a super user"]
    requested = replace(config, listener_overrides={})
    assert [line.split()[1] for line in warnings_of_access(requested, has_acls=True)] == ["FAR", "SSL"]
