"""Two brokers on one root, the lock put aside: the log stays single-writer all the same."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from bus import Admin, BusError, NewTopic, Producer
from bus.cluster_metadata.cluster_decisions import CreateTopic
from bus.cluster_metadata.cluster_records import BrokerRegistered, encode_record, replay_cluster
from bus.cluster_metadata.cluster_state import Leadership
from bus.errors import NotController
from bus.model import TopicPartition
from bus.storage_delta.root import open_storage, open_storage_on
from bus.storage_delta.stores.local import LocalStore
from tests.support.broker_thread import running_broker
from tests.support.cancelled_calls import QuietBroker, run_on_broker
from tests.support.memory_store import MemoryStore
from tests.support.stores import NOW_MS, ScriptedStore, led, log_batch


def test_older_leader_is_fenced_at_its_next_commit_and_no_offset_is_given_twice(tmp_path: Path) -> None:
    root = tmp_path / "root"
    old_storage = open_storage(str(root), holder="old", exclusive=False)
    with running_broker(root, storage=old_storage) as old:
        old_address = f"127.0.0.1:{old.port}"
        with Admin(old_address) as admin:
            admin.create_topics([NewTopic("t", partitions=1, configs={"commit.interval.ms": 0})])
        with Producer(old_address, retries=0) as to_old:
            assert to_old.send("t", b"old 0").result(50).offset == 0

            new_storage = open_storage(str(root), holder="new", exclusive=False)
            with running_broker(root, storage=new_storage) as new:
                # The old one may still win races until the new one has committed: the new one runs behind it.
                assert to_old.send("t", b"old 1").result(50).offset == 1
                with Producer(f"127.0.0.1:{new.port}", retries=0) as to_new:
                    assert to_new.send("t", b"new 2").result(50).offset == 2
                    with pytest.raises(BusError) as caught:
                        to_old.send("t", b"lost").result(50)
                    assert caught.value.name == "NOT_LEADER_OR_FOLLOWER"
                    assert caught.value.retriable
                    assert to_new.send("t", b"new 3").result(50).offset == 3
                with Admin(old_address, retries=0) as admin, pytest.raises(BusError) as refused:
                    admin.create_topics([NewTopic("u", partitions=1)])
                assert refused.value.name == "NOT_CONTROLLER"

    rows = (
        DeltaTable(root / "topics/t/0").to_pyarrow_table(columns=["offset", "value", "leader_epoch"]).sort_by("offset")
    )
    assert rows.column("offset").to_pylist() == [0, 1, 2, 3]
    assert rows.column("value").to_pylist() == [b"old 0", b"old 1", b"new 2", b"new 3"]
    epochs = rows.column("leader_epoch").to_pylist()
    assert epochs[0] == epochs[1] < epochs[2] == epochs[3]


def test_of_two_that_start_from_the_same_metadata_the_later_has_the_higher_epoch(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as first, Admin(f"127.0.0.1:{first.port}") as admin:
        admin.create_topics([NewTopic("t", partitions=1, configs={"commit.interval.ms": 0})])
    store = ScriptedStore(LocalStore(str(root)))
    with ExitStack() as stack:
        started = []
        rival = open_storage(str(root), holder="rival", exclusive=False)
        store.before_next("create", lambda: started.append(stack.enter_context(running_broker(root, storage=rival))))
        own = open_storage_on(store, exclusive=False)  # type: ignore[arg-type]
        broker = stack.enter_context(running_broker(root, storage=own))
        (other,) = started
        to_other = stack.enter_context(Producer(f"127.0.0.1:{other.port}", retries=0))
        to_broker = stack.enter_context(Producer(f"127.0.0.1:{broker.port}", retries=0))
        assert to_broker.send("t", b"0").result(50).offset == 0
        with pytest.raises(BusError) as caught:
            to_other.send("t", b"lost").result(50)
        assert caught.value.name == "NOT_LEADER_OR_FOLLOWER"
        assert to_broker.send("t", b"1").result(50).offset == 1
    epochs = DeltaTable(root / "topics/t/0").to_pyarrow_table(columns=["leader_epoch"]).column(0).to_pylist()
    assert epochs == [2, 2]  # 0 from its creation, 1 of the rival


@pytest.mark.parametrize("is_hidden", [True, False])
def test_nothing_is_changed_behind_another_controller(is_hidden: bool) -> None:
    """Hidden: the race is lost against an OPTIMIZE, and the newer controller has committed behind that."""
    store = MemoryStore()

    async def change(broker: QuietBroker) -> None:
        metadata = broker.cluster.metadata
        await broker.cluster.controller.create_topics([CreateTopic("before", 1)])
        version = metadata.state.version
        if is_hidden:
            foreign = b'{"commitInfo":{"operation":"OPTIMIZE","engineInfo":"Apache-Spark/4.2.0"}}\n'
            store.put(f"topics/__cluster_metadata/0/_delta_log/{version + 1:020d}.json", foreign)
        other = led(open_storage_on(store, exclusive=False).open_metadata())
        row = encode_record(BrokerRegistered(1, "other", 9094))
        other.append([row], leader_epoch=metadata.leader_epoch + 1, now_ms=NOW_MS)
        with pytest.raises(NotController):
            await broker.cluster.controller.create_topics([CreateTopic("lost", 1)])
        assert other.reload().version == version + 1 + is_hidden
        assert "lost" not in broker.cluster.state.topics

    run_on_broker(store, change)


def test_each_life_of_one_broker_is_registered_elected_and_leads_at_higher_epochs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("t", partitions=1)])
    for start in range(2):
        with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
            admin.create_topics([NewTopic(f"u{start}", partitions=3)])
            with Producer(f"127.0.0.1:{broker.port}") as producer:
                assert producer.send("t", b"v").result(50).offset == start
                assert producer.send("u0", b"v", partition=2).result(50).offset == start
            assert [one.broker_id for one in admin.describe_cluster().brokers] == [0]
    storage = open_storage(str(root))
    state = replay_cluster(storage.open_metadata().replay())
    storage.close()
    assert state.controller is not None
    assert state.brokers[0].life == (state.controller.incarnation, 3)
    assert state.topics["t"].partitions == (Leadership(0, 2),)
    assert state.topics["u0"].partitions == (Leadership(0, 1),) * 3
    assert state.topics["u0"].assignments == ((0,),) * 3


def test_a_start_on_metadata_that_are_older_than_a_log_leads_it_at_a_higher_epoch(tmp_path: Path) -> None:
    """They were repaired, or come out of a backup: nothing is to fence the only broker there is."""
    root = tmp_path / "root"
    with running_broker(root) as broker, Admin(f"127.0.0.1:{broker.port}") as admin:
        admin.create_topics([NewTopic("t", partitions=1, configs={"commit.interval.ms": 0})])
        topic_id = broker.cluster.state.topics["t"].topic_id
    table = led(open_storage(str(root), exclusive=False).open_partition(TopicPartition("t", 0), topic_id=topic_id))
    table.append([log_batch(0, [b"before"], leader_epoch=40)], leader_epoch=40, now_ms=NOW_MS)
    for epoch in (41, 42):
        with running_broker(root) as broker, Producer(f"127.0.0.1:{broker.port}", retries=0) as producer:
            assert producer.send("t", b"after").result(50).offset == epoch - 40
    epochs = DeltaTable(root / "topics/t/0").to_pyarrow_table(columns=["leader_epoch"]).column(0).to_pylist()
    assert sorted(epochs) == [40, 41, 42]
