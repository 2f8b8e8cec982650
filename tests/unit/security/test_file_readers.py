from __future__ import annotations

from bus.security.acl_decisions import AclPolicy
from bus.security.acl_index import index_of
from bus.security.acls import ANY_PRINCIPAL, AclBinding, AclOperation, AclResourceType
from bus.security.file_readers import NotExpressed, TopicReaders, plan_file_readers
from tests.support.acls import allow, deny, prefixed

TOPICS = ("orders", "orders-secret", "other")
LATER = "topics that are created later are not in it: export again"


def readers(*acls: AclBinding, policy: AclPolicy | None = None) -> dict[str, tuple[list[str], list[str]]]:
    """Return, by topic, who may read it and who is denied it; without topics of nobody."""
    found = plan_file_readers(index_of(acls), TOPICS, policy or AclPolicy())
    return {one.topic: (list(one.allowed), list(one.denied)) for one in found.topics if one.allowed or one.denied}


def not_expressed(*acls: AclBinding) -> list[NotExpressed]:
    return list(plan_file_readers(index_of(acls), TOPICS, AclPolicy()).not_expressed)


def test_to_read_or_to_do_all_is_read_and_nothing_else() -> None:
    assert readers(allow()) == readers(allow(AclOperation.ALL)) == {"orders": (["User:alice"], [])}
    for acl in (
        allow(AclOperation.WRITE),
        allow(AclOperation.DESCRIBE),
        allow(of=AclResourceType.GROUP),
        allow(name="absent"),
    ):
        assert readers(acl) == {}


def test_patterns_are_the_topics_that_there_are() -> None:
    assert readers(prefixed(allow(name="ord"))).keys() == {"orders", "orders-secret"}
    assert readers(allow(name="*")).keys() == set(TOPICS)
    for acl in (prefixed(allow(name="ord")), allow(name="*")):
        assert not_expressed(acl) == [NotExpressed(acl, LATER)]
    assert not_expressed(allow()) == []


def test_a_denial_within_a_prefix_takes_its_topics_out() -> None:
    prefix = prefixed(allow(name="ord"))
    assert readers(prefix, deny(name="orders-secret")).keys() == {"orders"}
    assert readers(prefix, prefixed(deny(name="orders-", principal=ANY_PRINCIPAL))).keys() == {"orders"}
    assert readers(prefix, deny(AclOperation.ALL, name="*")) == {}


def test_who_is_denied_what_everyone_may_read_is_named() -> None:
    everyone = allow(principal=ANY_PRINCIPAL)
    assert readers(everyone, allow(name="other"), deny(principal="User:bob")) == {
        "orders": ([ANY_PRINCIPAL, "User:alice"], ["User:bob"]),
        "other": (["User:alice"], []),
    }


def test_hosts_grant_nothing_and_deny_everywhere() -> None:
    from_host, not_from_host = allow(host="10.0.0.1"), deny(host="10.0.0.1")
    assert readers(from_host) == {}
    assert not_expressed(from_host) == [NotExpressed(from_host, "files know no host, so it grants nothing")]
    assert readers(allow(), not_from_host) == {}
    assert readers(allow(), deny(host="10.0.0.1", principal=ANY_PRINCIPAL)) == {}
    assert readers(allow(), deny(host="10.0.0.1", principal="User:bob")) == {"orders": (["User:alice"], [])}
    expected = "files know no host, so it denies reading from everywhere"
    assert not_expressed(allow(), not_from_host) == [NotExpressed(not_from_host, expected)]


def test_the_configuration_of_the_broker_counts() -> None:
    assert readers(allow(), policy=AclPolicy(frozenset({"User:alice"}))) == {}
    found = readers(allow(), policy=AclPolicy(allows_unnamed=True))
    assert found["orders"] == (["User:alice"], [])
    assert found["other"] == ([ANY_PRINCIPAL, "User:alice"], [])


def test_no_topic_is_no_reader() -> None:
    assert list(plan_file_readers(index_of([allow()]), [], AclPolicy()).topics) == []
    assert plan_file_readers(index_of([]), ["a"], AclPolicy()).topics == [TopicReaders("a", [], [])]
