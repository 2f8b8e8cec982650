"""Policies of buckets: what they give too much or too little, however they spell it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.cli.acl_export import Grants, s3_policy
from bus.cli.failures import Failure
from bus.cli.policy_check import PolicyCheck

PLACE, BUCKET = "s3://lake/bus", "arn:aws:s3:::lake"
ALICE, BOB = "arn:aws:iam::1:role/alice", "arn:aws:iam::1:role/bob"
TOPICS = ("__cluster_metadata", "orders", "orders2", "other")
ASKED_FOR = Grants({ALICE: ["orders"]}, {}, [])


def statement(principal: Any = ALICE, action: Any = "s3:GetObject", resource: Any = "*", **more: Any) -> dict[str, Any]:
    effect = more.pop("effect", "Allow")
    who = principal if principal == "*" else {"AWS": principal}
    return {"Effect": effect, "Principal": who, "Action": action, "Resource": resource, **more}


def exported(grants: Grants = ASKED_FOR) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(s3_policy(grants, PLACE, tables_only=False))["Statement"]
    return found


def differences(*statements: Any, grants: Grants = ASKED_FOR, tables_only: bool = False, **more: Any) -> list[str]:
    check = PolicyCheck(json.dumps({"Statement": statements}), PLACE, **more)
    return list(check.differences(grants, TOPICS, tables_only=tables_only))


def objects(topic: str) -> str:
    return f"{BUCKET}/bus/topics/{topic}/*"


def test_what_was_exported_is_no_difference() -> None:
    assert differences(*exported()) == []
    everyone = Grants({"arn:aws:iam::1:root": ["orders"]}, {BOB: ["orders"]}, [])
    assert differences(*exported(everyone), grants=everyone) == []


def test_what_is_missing_is_told() -> None:
    assert differences(exported()[0]) == [
        f"{ALICE}: expected s3:ListBucket on bus/topics/{topic}/*, found none for all of it"
        for topic in ("__cluster_metadata", "orders")
    ]
    assert f"{ALICE}: expected s3:GetObject on bus/bus-root.json, found none" in differences()
    assert f"{ALICE}: expected s3:GetObject on bus/topics/orders/*, found none for all of it" in differences()
    assert len(differences(tables_only=True)) == 2


@pytest.mark.parametrize(
    "statements",
    [
        [statement(resource=objects("orders") + "0")],
        [statement(resource=f"{BUCKET}/bus/topics/orders")],
        [statement(resource=objects("orders"), Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}})],
        [statement(resource=objects("orders")), statement(effect="Deny", resource=objects("orders") + ".parquet")],
        [statement(resource=objects("orders")), statement("*", effect="Deny", action="s3:Get*")],
        [statement(BOB, resource=objects("orders"))],
    ],
)
def test_a_right_to_a_part_or_under_a_condition_or_of_another_is_none(statements: list[Any]) -> None:
    found = differences(*statements, tables_only=True)
    assert f"{ALICE}: expected s3:GetObject on bus/topics/orders/*, found none for all of it" in found


@pytest.mark.parametrize(
    "one",
    [
        statement(BOB, resource=objects("orders")),
        statement([BOB], action=["s3:PutObjectAcl", "S3:get*"], resource=[BUCKET, objects("o?der*")]),
        statement(BOB, resource=objects("orders") + "/part-1.parquet"),
        statement(BOB, resource=objects("orders"), Condition={"Bool": {"aws:SecureTransport": "true"}}),
    ],
)
def test_a_right_that_is_not_asked_for_is_told_also_to_a_part_or_under_a_condition(one: Any) -> None:
    expected = f"{BOB}: expected no s3:GetObject on bus/topics/orders/*, found one in statement 3"
    assert expected in differences(*exported(), one)


def test_everyone_is_told_unless_everyone_is_denied() -> None:
    line = "*: expected no s3:GetObject on bus/topics/other/*, found one in statement 3"
    public = statement("*", resource=f"{BUCKET}/bus/*")
    assert line in differences(*exported(), public)
    denied = statement("*", effect="Deny", resource=f"{BUCKET}/bus/topics/other/*")
    assert line not in differences(*exported(), public, denied)
    under = statement("*", effect="Deny", resource=f"{BUCKET}/*", Condition={"Bool": {"aws:SecureTransport": "false"}})
    assert line in differences(*exported(), public, under)


def test_denial_under_a_condition_is_none() -> None:
    """As that of all that does not come by TLS, which many buckets have."""
    condition = {"Bool": {"aws:SecureTransport": "false"}}
    plain = statement("*", effect="Deny", action="s3:*", resource=[BUCKET, f"{BUCKET}/*"], Condition=condition)
    assert differences(*exported(), plain) == []


def test_who_is_denied_may_not_read_as_everyone_may() -> None:
    grants = Grants({"arn:aws:iam::1:root": ["orders"]}, {BOB: ["orders"]}, [])
    public = statement("*", resource=objects("orders"))
    line = f"{BOB}: expected no s3:GetObject on bus/topics/orders/*, found one in statement 2"
    assert line in differences(exported(grants)[0], public, grants=grants)
    assert line not in differences(exported(grants)[0], public, exported(grants)[2], grants=grants)


def test_readers_may_not_write_and_brokers_may_do_everything() -> None:
    everything = statement(action="s3:*", resource=f"{BUCKET}/bus/topics/orders/*")
    assert differences(*exported(), everything) == [
        f"{ALICE}: expected no {action} on bus/topics/orders/*, found one in statement 3"
        for action in ("s3:PutObject", "s3:DeleteObject")
    ]
    broker = statement(BOB, action="s3:*", resource=[BUCKET, f"{BUCKET}/*"])
    assert len(differences(*exported(), broker)) == 4 * len(TOPICS)
    assert differences(*exported(), broker, brokers=(BOB,)) == []


def test_listing_counts_by_its_prefixes() -> None:
    found = differences(*exported(), statement(action="s3:ListBucket", resource=BUCKET))
    assert found == [
        f"{ALICE}: expected no s3:ListBucket on bus/topics/{topic}/*, found one in statement 3"
        for topic in ("orders2", "other")
    ]
    prefixes = {"StringLike": {"s3:prefix": ["bus/topics/orders/*", "bus/topics/orders2/*"]}}
    [line] = differences(*exported(), statement(action="s3:ListBucket", resource=BUCKET, Condition=prefixes))
    assert "s3:ListBucket on bus/topics/orders2/*" in line


@pytest.mark.parametrize(
    ("one", "said"),
    [
        ({**statement(), "NotResource": "x"}, "NotResource"),
        ({**statement(), "Effect": "allow"}, "an Effect that is neither Allow nor Deny"),
        (statement(resource="arn:aws:s3:::lake/${aws:username}/*"), "a variable in Resource"),
        (statement(action=[1]), "Action that is no text and no list of texts"),
        ({**statement(), "Principal": None}, "a Principal of another form"),
    ],
)
def test_statement_that_is_not_understood_is_told(one: Any, said: str) -> None:
    assert differences(*exported(), one) == [f"statement 3: expected what can be compared, found {said}"]


@pytest.mark.parametrize(
    "document", ["", "[]", '{"Statement": [1]}', '{"Version": "2012-10-17", "State', "[" * 100_000]
)
def test_what_is_no_policy_is_refused(document: str) -> None:
    with pytest.raises(Failure, match="--policy: expected the JSON of a bucket's policy"):
        PolicyCheck(document, PLACE)
    with pytest.raises(Failure, match="expected --root s3://"):
        PolicyCheck('{"Statement": []}', "/data/bus")
