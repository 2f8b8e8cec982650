"""The administrator's calls for logs, over gRPC to logs in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bus import Admin, BusError, ErrorCode, TopicPartition
from bus.descriptions import DeletedRecords, MaintainedLog
from bus.grpc_api.v1 import bus_pb2 as pb
from tests.support.fake_broker import BreakStream, Refuse
from tests.support.fake_logs import SWAP_VERSION, FakeLogBroker
from tests.support.member_processes import wait_until

ORDERS_0, ORDERS_1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


@pytest.fixture
def broker() -> Iterator[FakeLogBroker]:
    with FakeLogBroker() as fake:
        fake.cluster.create("orders", 2)
        fake.append_offsets("orders", 0, 10)
        fake.append_offsets("orders", 1, 5)
        yield fake


@pytest.fixture
def admin(broker: FakeLogBroker) -> Iterator[Admin]:
    with Admin(broker.address, retry_backoff_ms=1) as client:
        yield client


# ------------------------------------------------------------------ deleting records


def test_records_are_deleted_up_to_an_offset_or_all(broker: FakeLogBroker, admin: Admin) -> None:
    assert admin.delete_records({ORDERS_1: 3, ORDERS_0: -1}) == {
        ORDERS_1: DeletedRecords(3, 2),
        ORDERS_0: DeletedRecords(10, 2),
    }
    assert broker.calls.count("DeleteRecords") == 1
    assert admin.delete_records({}) == {}


def test_offset_below_the_log_start_leaves_it_where_it_is(admin: Admin) -> None:
    admin.delete_records({ORDERS_0: 4})
    assert admin.delete_records({ORDERS_0: 2})[ORDERS_0].low_watermark == 4


def test_a_refused_partition_is_named_and_the_others_are_done(broker: FakeLogBroker, admin: Admin) -> None:
    with pytest.raises(BusError, match="at most 10, found 11") as caught:
        admin.delete_records({ORDERS_0: 11, ORDERS_1: 3})
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert [log.log_start for log in broker.cluster.topics["orders"].partitions] == [0, 3]
    with pytest.raises(BusError, match=r"2 of 2 failed: 'orders-0': .*; 'orders-1': "):
        admin.delete_records({ORDERS_0: 11, ORDERS_1: 6})


def test_unknown_topic_and_partition_are_refused_beside_those_that_exist(broker: FakeLogBroker, admin: Admin) -> None:
    with pytest.raises(BusError, match="2 of 3 failed") as caught:
        admin.delete_records({TopicPartition("nowhere", 0): 1, TopicPartition("orders", 7): 1, ORDERS_0: 1})
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert broker.cluster.topics["orders"].partitions[0].log_start == 1


def test_deleting_is_tried_again_where_that_may_help_and_only_there(broker: FakeLogBroker, admin: Admin) -> None:
    broker.log_script.extend(
        [
            BreakStream(is_appended=False),
            Refuse(ErrorCode.KAFKA_STORAGE_ERROR),
            Refuse(ErrorCode.POLICY_VIOLATION, "cleanup.policy is compact"),
        ]
    )
    with pytest.raises(BusError, match=r"cleanup\.policy is compact") as caught:
        admin.delete_records({ORDERS_0: 1, ORDERS_1: 1})
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert [log.log_start for log in broker.cluster.topics["orders"].partitions] == [1, 0]
    assert broker.calls.count("DeleteRecords") == 3


def test_a_new_leader_is_asked(broker: FakeLogBroker, admin: Admin) -> None:
    with FakeLogBroker(broker.cluster, broker_id=1) as other:
        admin.delete_records({ORDERS_0: 1})
        broker.cluster.move("orders", 0, 1)
        assert admin.delete_records({ORDERS_0: 2, ORDERS_1: 2})[ORDERS_0].low_watermark == 2
        assert other.calls.count("DeleteRecords") == 1


def test_trying_again_ends_with_the_time_for_a_call(broker: FakeLogBroker) -> None:
    broker.log_script.extend([Refuse(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")] * 100)
    with (
        Admin(broker.address, retry_backoff_ms=1, retry_backoff_max_ms=1, retries=2) as admin,
        pytest.raises(BusError, match="the disk is full"),
    ):
        admin.delete_records({ORDERS_0: 1})
    assert broker.calls.count("DeleteRecords") == 3


# ------------------------------------------------------------------ maintenance by hand


def test_maintenance_gives_a_result_for_each_partition(broker: FakeLogBroker, admin: Admin) -> None:
    assert list(admin.maintain_log("orders", "compact")) == [
        MaintainedLog(number, 7, 4, 1, 4_096, 1_024, 1_025, 5, 3, 2, 2_048, True) for number in (0, 1)
    ]
    assert [request.action for request in broker.maintained] == [pb.MAINTENANCE_ACTION_COMPACT]
    assert [one.partition for one in admin.maintain_log("orders", "roll", [1])] == [1]
    assert list(admin.maintain_log("orders", "clean", [])) == []


def test_each_leader_maintains_its_partitions(broker: FakeLogBroker, admin: Admin) -> None:
    with FakeLogBroker(broker.cluster, broker_id=1) as other:
        broker.cluster.move("orders", 1, 1)
        assert [one.partition for one in admin.maintain_log("orders", "roll")] == [0, 1]
        assert [list(one.maintained[0].partitions) for one in (broker, other)] == [[0], [1]]


def test_failed_partition_is_told_after_the_others_are_done(broker: FakeLogBroker, admin: Admin) -> None:
    broker.log_script.append(Refuse(ErrorCode.POLICY_VIOLATION, "cleanup.policy is delete"))
    results = admin.maintain_log("orders", "compact")
    assert next(results).partition == 1
    with pytest.raises(BusError, match=r"cleanup\.policy is delete") as caught:
        next(results)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


def test_maintenance_begins_before_the_first_result_is_asked_for(broker: FakeLogBroker, admin: Admin) -> None:
    results = admin.maintain_log("orders", "roll")
    assert [one.partition for one in admin.maintain_log("orders", "clean")] == [0, 1]
    both = {pb.MAINTENANCE_ACTION_ROLL, pb.MAINTENANCE_ACTION_CLEAN}
    wait_until(lambda: {request.action for request in broker.maintained} == both, "both have begun")
    assert len(list(results)) == 2


def test_closing_the_iterator_ends_the_call(broker: FakeLogBroker, admin: Admin) -> None:
    results = admin.maintain_log("orders", "roll")
    assert next(results).partition == 0
    broker.gate.clear()
    results.close()
    assert broker.maintenance_ended.wait(60)
    broker.gate.set()


def test_broker_that_goes_away_in_the_middle_is_an_error(broker: FakeLogBroker, admin: Admin) -> None:
    broker.log_script.append(BreakStream(is_appended=False))
    with pytest.raises(BusError) as caught:
        list(admin.maintain_log("orders", "roll"))
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


def test_what_cannot_be_maintained_is_refused_before_anything_begins(broker: FakeLogBroker, admin: Admin) -> None:
    with pytest.raises(BusError, match="expected an action roll, compact, clean or upgrade, found 'vacuum'"):
        admin.maintain_log("orders", "vacuum")
    with pytest.raises(BusError, match="'nowhere'"):
        admin.maintain_log("nowhere", "roll")
    with pytest.raises(BusError, match="from 0 to 1, found 2"):
        admin.maintain_log("orders", "roll", [0, 2])
    assert broker.maintained == []


# ------------------------------------------------------------------ files of a job


def test_a_swap_is_sent_as_it_is_given(broker: FakeLogBroker, admin: Admin) -> None:
    assert admin.swap_files("orders", 1, ["a", "b"], ["c"], "last_of_keys") == SWAP_VERSION
    assert broker.swaps == [
        pb.SwapFilesRequest(topic="orders", partition=1, kind=pb.SWAP_KIND_LAST_OF_KEYS, removes=["a", "b"], adds=["c"])
    ]


def test_a_swap_is_never_sent_twice(broker: FakeLogBroker, admin: Admin) -> None:
    broker.log_script.extend([BreakStream(is_appended=True), Refuse(ErrorCode.KAFKA_STORAGE_ERROR)])
    for code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.KAFKA_STORAGE_ERROR):
        with pytest.raises(BusError) as caught:
            admin.swap_files("orders", 0, ["a"], ["b"])
        assert caught.value.code is code
    assert len(broker.swaps) == 2


def test_unknown_kind_of_swap_is_refused(broker: FakeLogBroker, admin: Admin) -> None:
    with pytest.raises(BusError, match="expected a kind same_rows or last_of_keys, found 'any'"):
        admin.swap_files("orders", 0, ["a"], ["b"], "any")
    assert broker.swaps == []
