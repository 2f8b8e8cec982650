"""Three brokers in two racks: a consumer is served in its own."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess

PLACE = TopicPartition("t", 0)
COUNT = 2_000
RACKS = ("a", "b", "b")


def test_consumer_reads_in_its_rack_and_goes_on_at_the_leader_when_that_replica_dies(tmp_path: Path) -> None:
    with ExitStack() as running:
        brokers = []
        for broker_id, rack in enumerate(RACKS):
            options = ("--broker-id", str(broker_id), "--rack", rack, "--set=replica.selector.class=rack")
            brokers.append(BrokerProcess(tmp_path / "root", *options, name=f"broker-{broker_id}"))
            running.enter_context(brokers[-1])
        with Admin(brokers[0].address) as admin:
            admin.create_topics([NewTopic("t", partitions=1, configs={"commit.interval.ms": 0})])
            leader_id = admin.describe_topics(["t"])["t"].partitions[0].leader_id
        address = brokers[leader_id].address
        with Producer(address, linger_ms=0, batch_size=1_000) as producer:
            for number in range(COUNT):
                producer.send("t", b"%d" % number)
            producer.flush()
        found: list[int] = []
        served_by: list[int] = []
        with Consumer(
            address,
            client_rack="b" if RACKS[leader_id] == "a" else "a",
            auto_offset_reset="earliest",
            max_poll_records=20,
            max_partition_fetch_bytes=2_000,
        ) as consumer:
            consumer.assign([PLACE])
            is_killed = False
            while len(found) < COUNT:
                found += [int(record.value or b"") for record in consumer.poll(5_000)]
                served_by.append(int(consumer.partition_metrics()[PLACE]["preferred-read-replica"]))
                if len(found) >= COUNT // 2 and not is_killed:
                    replica_id, is_killed = served_by[-1], True
                    assert replica_id not in (-1, leader_id)
                    assert served_by.count(replica_id) > len(served_by) // 2
                    brokers[replica_id].kill()
        assert replica_id != served_by[-1]
        assert found == list(range(COUNT))
