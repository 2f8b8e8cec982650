"""Invalid arguments are refused by name, before anything is asked of a broker: there is none, and a call that went so
far would wait for it until the test's own time-out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from bus import Admin, BusError, Consumer, ErrorCode, NewTopic, Producer, TopicPartition, aio
from bus.client.config.parsing import parse_addresses

NOWHERE = "127.0.0.1:1"
HOUR_MS = 3_600_000
T0 = TopicPartition("t", 0)


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    with Producer(NOWHERE, max_block_ms=HOUR_MS, name="n") as producer:
        yield producer


@pytest.fixture(scope="module")
def admin() -> Iterator[Admin]:
    with Admin(NOWHERE, default_api_timeout_ms=HOUR_MS) as admin:
        yield admin


@pytest.mark.parametrize("client", [Producer, Admin, Consumer, aio.Producer, aio.Consumer])
@pytest.mark.parametrize(
    ("arguments", "configs", "found"),
    [
        ((), {}, "expected an address as host:port, or a list of them, found none"),
        ((), {"bootstrap_servers": NOWHERE}, "bootstrap_servers: give the address as the first argument"),
        ((), {"bootstrap.servers": NOWHERE}, "bootstrap.servers: give the address as the first argument"),
        (({"bootstrap.servers": NOWHERE},), {}, "found dict: give the address as the first argument"),
        ((9094,), {}, "found int"),
        ((b"127.0.0.1:9094",), {}, "found bytes"),
        (([9094],), {}, "found int"),
        (("http://127.0.0.1:9094",), {}, "without scheme and path, found 'http://127.0.0.1:9094'"),
        ((NOWHERE,), {"lingerms": 1, "clientid": "c"}, "expected a known config, found"),
        ((NOWHERE,), {"client_id": None}, "client_id: expected printable ASCII text, found None"),
        ((NOWHERE,), {"client_id": "x" * 256}, "client_id: expected at most 255 characters, found 'x"),
    ],
)
def test_client_says_how_it_is_made(client: Any, arguments: Any, configs: Any, found: str) -> None:
    with pytest.raises(BusError) as caught:
        client(*arguments, **configs)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"acks": []}, "acks: expected one of 'all'"),
        ({"linger_ms": "5"}, "linger_ms: expected an integer from 0"),
        ({"linger_ms": -1}, "linger_ms: expected an integer from 0"),
        ({"value_serializer": "json"}, "value_serializer: expected None, a function of the value"),
        ({"value_serializer": type("S", (), {"serialize": None})}, "value_serializer: expected None"),
        ({"partitioner": type("P", (), {"partition": None})}, "partitioner: expected None, 'round_robin'"),
        ({"partitioner": [1]}, "partitioner: expected None, 'round_robin'"),
        ({"interceptors": object()}, "interceptors: expected a list of objects"),
    ],
)
def test_settings_say_what_they_may_be(configs: Any, expected: str) -> None:
    with pytest.raises(BusError) as caught:
        Producer(NOWHERE, **configs)
    assert expected in str(caught.value)


@pytest.mark.parametrize("bad", ["a/b:1", "a b:1", "user@a:1", "a:1\n2:3", "a:٣"])
def test_address_is_a_host_and_a_port_and_nothing_else(bad: str) -> None:
    with pytest.raises(BusError, match="host:port"):
        parse_addresses(bad)


PRODUCER_CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda producer: producer.send(None, b""), "topic as text, found None"),
    (lambda producer: producer.send(b"t", b""), "topic as text, found bytes: decode it"),
    (lambda producer: producer.send(["t"], b""), "topic as text, found list"),
    (lambda producer: producer.send("\ud800", b""), "topic as text that has a form in UTF-8"),
    (lambda producer: producer.send("t", "text"), "value as bytes or None, found str: encode it, or give"),
    (lambda producer: producer.send("t", {"a": 1}), "value as bytes or None, found dict"),
    (lambda producer: producer.send("t", b"", 5), "key as bytes or None, found int"),
    (lambda producer: producer.send("t", b"", headers={"a": b""}), r".*found dict: give list\(headers.items\(\)\)"),
    (lambda producer: producer.send("t", b"", headers="ab"), "headers as a list of pairs .*, found str"),
    (lambda producer: producer.send("t", b"", headers=5), "headers as a list of pairs .*, found int"),
    (lambda producer: producer.send("t", b"", headers=0), "headers as a list of pairs .*, found int"),
    (lambda producer: producer.send("t", b"", headers=["ab"]), "headers as a list of pairs .*, found str: 'ab'"),
    (lambda producer: producer.send("t", b"", headers=[(b"a", b"")]), "a header's name as text, found bytes"),
    (lambda producer: producer.send("t", b"", headers=[("a", "b")]), "header 'a' as bytes or None, found str"),
    (lambda producer: producer.send("t", b"", partition="0"), "partition as an integer or None, found str"),
    (lambda producer: producer.send("t", b"", timestamp_ms=1.5), "timestamp_ms as an integer, milliseconds since 1970"),
    (lambda producer: producer.send("t", b"", timestamp_ms="now"), "timestamp_ms as an integer, .*, found str"),
    (lambda producer: producer.send_batch(5, pa.table({"value": [b""]})), "topic as text, found int"),
    (lambda producer: producer.send_batch("t", [b""]), "a pyarrow Table or RecordBatch, found list"),
    (lambda producer: producer.send_batch("t", None), "a pyarrow Table or RecordBatch, found None"),
    (lambda producer: producer.partitions_for(["t"]), "topic as text, found list"),
    (lambda producer: producer.last_sequence("t", "0"), "partition as an integer, found str"),
    (lambda producer: producer.last_sequence("t", -1), "partition from 0 to"),
    (lambda producer: producer.flush("1"), "timeout in seconds, or None, found str"),
    (lambda producer: producer.flush(-1), "timeout of 0 seconds or more, found -1"),
    (lambda producer: producer.flush(math.nan), "timeout of 0 seconds or more, found nan"),
    (lambda producer: producer.close("1"), "timeout in seconds, or None, found str"),
    (lambda producer: producer.close(True), "timeout in seconds, or None, found bool"),
]


@pytest.mark.parametrize(("call", "expected"), PRODUCER_CALLS)
def test_producer_says_what_was_expected(producer: Producer, call: Callable[[Any], Any], expected: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"expected {expected}"):
        call(producer)


def test_asyncio_producer_says_what_was_expected() -> None:
    async def scenario() -> None:
        async with aio.Producer(NOWHERE, max_block_ms=HOUR_MS, name="n") as producer:
            for call, expected in PRODUCER_CALLS:
                with pytest.raises((TypeError, ValueError), match=f"expected {expected}"):
                    await call(producer)

    asyncio.run(scenario())


ADMIN_CALLS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda admin: admin.create_topics(["foo"]), r"a NewTopic, found str: give NewTopic\('foo'\)"),
    (lambda admin: admin.create_topics("foo"), "topics as a list of NewTopic, found str"),
    (lambda admin: admin.create_topics(NewTopic("t")), "topics as a list of NewTopic, found NewTopic"),
    (lambda admin: admin.create_topics(None), "topics as a list of NewTopic, found None"),
    (lambda admin: admin.create_topics([{"name": "t"}]), "a NewTopic, found dict"),
    (lambda admin: admin.delete_topics("tt"), r"names as a list of text, found str: give \['tt'\]"),
    (lambda admin: admin.delete_topics([5]), "an item of names as text, found int"),
    (lambda admin: admin.delete_topics(None), "names as a list of text, found None"),
    (lambda admin: admin.create_partitions("t"), "totals as a mapping from topic to number of partitions, found str"),
    (lambda admin: admin.create_partitions({"t": "3"}), r"totals\['t'\] as an integer, found str"),
    (lambda admin: admin.create_partitions({"t": 2**40}), r"totals\['t'\] from "),
    (lambda admin: admin.describe_topics("t"), r"names as a list of text, found str: give \['t'\]"),
    (lambda admin: admin.describe_configs(5), "name as text, found int"),
    (lambda admin: admin.describe_configs("t", kind=[]), r"a resource kind topic or broker, found \[\]"),
    (lambda admin: admin.describe_configs("t", keys="retention.ms"), "keys as a list of text, found str"),
    (lambda admin: admin.alter_configs("t", ["x"]), "changes as a mapping from config to value, found list"),
    (lambda admin: admin.alter_configs("t", {"retention.ms": None}), r"changes\['retention.ms'\] as text, a number"),
    (lambda admin: admin.alter_configs("t", delete="retention.ms"), "delete as a list of text, found str"),
    (lambda admin: admin.list_offsets({"t": 1}), "a key of wanted as a TopicPartition, found str"),
    (lambda admin: admin.list_offsets([T0]), "wanted as a mapping from TopicPartition to offset, found list"),
    (lambda admin: admin.list_offsets({T0: "latest"}), "as an integer, found str"),
    (lambda admin: admin.list_offsets({T0: 2**64}), "from -9223372036854775807 to "),
    (lambda admin: admin.list_offsets({TopicPartition("t", "0"): 1}), "partition of a key of wanted as an integer"),
    (lambda admin: admin.delete_records({T0: "1"}), "as an integer, found str"),
    (lambda admin: admin.delete_records({T0: 2**63}), "found 9223372036854775808"),
    (lambda admin: admin.maintain_log(5, "roll"), "topic as text, found int"),
    (lambda admin: admin.maintain_log("t", ["roll"]), "an action roll, compact, clean or upgrade, found"),
    (lambda admin: admin.maintain_log("t", "roll", 0), "partitions as a list of integers, found int"),
    (lambda admin: admin.swap_files("t", "0", [], []), "partition as an integer, found str"),
    (lambda admin: admin.swap_files("t", 0, "a", []), "removes as a list of text, found str"),
    (lambda admin: admin.swap_files("t", 0, [], [], ["same_rows"]), "a kind same_rows or last_of_keys, found"),
    (lambda admin: admin.create_view(5, "t", "a INT"), "name as text, found int"),
    (lambda admin: admin.create_view("v", "t", "a INT", columns="key"), "columns as a list of text, found str"),
    (lambda admin: admin.delete_view(None), "name as text, found None"),
    (lambda admin: admin.list_groups("Stable"), "states as a list of text, found str"),
    (lambda admin: admin.describe_groups("g"), "group_ids as a list of text, found str"),
    (lambda admin: admin.delete_groups("g"), "group_ids as a list of text, found str"),
    (lambda admin: admin.list_group_offsets(5), "group_ids as a list of text, found int"),
    (lambda admin: admin.list_group_offsets("g", "t"), "partitions as a list of TopicPartition, found str"),
    (lambda admin: admin.alter_group_offsets("g", {"t": 1}), "a key of offsets as a TopicPartition, found str"),
    (lambda admin: admin.alter_group_offsets("g", {T0: "1"}), "as an integer, found str"),
    (lambda admin: admin.alter_group_offsets(5, {T0: 1}), "group_id as text, found int"),
    (lambda admin: admin.delete_group_offsets("g", "t"), "partitions as a list of TopicPartition, found str"),
    (lambda admin: admin.remove_members("g", member_ids="m"), "member_ids as a list of text, found str"),
    (lambda admin: admin.create_topics([], validate_only="no"), "validate_only as True or False, found str"),
    (lambda admin: admin.create_partitions({"t": 3}, validate_only=1), "validate_only as True or False, found int"),
    (lambda admin: admin.alter_configs("t", {"retention.ms": 1}, validate_only=[]), "True or False, found list"),
    (lambda admin: admin.list_topics("internal"), "include_internal as True or False, found str"),
    (lambda admin: admin.create_view("v", "t", "a INT", replace=2**70), "replace as True or False, found int"),
    (lambda admin: admin.create_view("v", "t", "a INT", validate_only=None), "True or False, found None"),
    (lambda admin: admin.create_group("g", "t", "latest"), "topics as a list of text or TopicPartition, found str"),
    (lambda admin: admin.create_group("g", ["t"], ["latest"]), "a start of earliest or latest, found"),
    (lambda admin: admin.create_group("g", ["t"], timestamp_ms="now"), "timestamp_ms as an integer, found str"),
]


@pytest.mark.parametrize(("call", "expected"), ADMIN_CALLS)
def test_admin_says_what_was_expected(admin: Admin, call: Callable[[Any], Any], expected: str) -> None:
    with pytest.raises(BusError, match=f"expected .*{expected}") as caught:
        call(admin)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("arguments", "named", "expected"),
    [
        ((5,), {}, "topic as text, found int"),
        (("t", "3"), {}, "partitions as an integer, found str"),
        (("t", 2**40), {}, "partitions from "),
        (("t", 1, 1), {}, "configs as a mapping from config to value, found int"),
        (("t", 1, {5: 1}), {}, "a key of configs as text, found int"),
        (("t", 1, {"retention.ms": None}), {}, r"configs\['retention.ms'\] as text, a number"),
        (("t",), {"num_partitions": 3}, "not num_partitions, found int: the argument is partitions"),
        (("t",), {"replica_assignments": 3}, "not replica_assignments, found int: the argument is replica_assignment"),
        (("t",), {"replication_factor": "3"}, "replication_factor as an integer, found str"),
        (("t",), {"replication_factor": 0}, "replication_factor from 1 "),
        (("t",), {"replica_assignment": [0, 1]}, "an item of replica_assignment as a list of broker ids, found int"),
    ],
)
def test_new_topic_says_what_was_expected(arguments: Any, named: Any, expected: str) -> None:
    with pytest.raises(BusError, match=f"expected .*{expected}"):
        NewTopic(*arguments, **named)


def test_new_topic_is_a_value() -> None:
    assert NewTopic("t") == NewTopic("t", None, {})
    assert NewTopic("t", 3, configs={"retention.ms": 5}).configs == {"retention.ms": 5}
