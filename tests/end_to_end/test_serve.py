"""The broker as a process: start, stop, refuse, and what a restart finds."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from bus import Admin, Consumer, NewTopic, Producer, TopicPartition
from tests.support.broker_process import BrokerProcess


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bus", "serve", *options], capture_output=True, text=True, timeout=50, check=False
    )


def test_second_broker_on_a_root_is_refused_by_name_and_takes_over_from_a_dead_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as first:
        refused = serve("--root", str(first.root), "--listen", "127.0.0.1:0")
        assert refused.returncode == 1
        assert f"pid {first.pid}" in refused.stderr
        assert "Traceback" not in refused.stderr
        first.kill()
        with BrokerProcess(first.root):
            pass


def test_a_broker_whose_root_was_made_again_stops_and_leaves_the_new_one_alone(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as old:
        with Admin(old.address) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        shutil.rmtree(old.root)
        with BrokerProcess(old.root) as new:
            with Admin(new.address) as admin:
                admin.create_topics([NewTopic("t", partitions=1)])
            assert old.wait() == 1
            with Producer(new.address) as producer:
                assert producer.send("t", b"new").result(50).offset == 0
            new.kill()
        assert "error: " in old.log_path.read_text()
        assert "the folder was removed" in old.log_path.read_text()
    assert not list(old.root.rglob("_replaced*"))
    with BrokerProcess(old.root):
        pass


@pytest.mark.timeout(240)
def test_brokers_whose_root_is_renamed_end_at_once_and_say_why(tmp_path: Path) -> None:
    """They do not try to hand over to each other, for as long as a stop may take."""
    patient = "--set=controlled.shutdown.timeout.ms=600000"
    with (
        BrokerProcess(tmp_path / "root", "--broker-id", "0", patient, name="broker-0") as first,
        BrokerProcess(tmp_path / "root", "--broker-id", "1", patient, name="broker-1") as second,
        Admin(first.address) as admin,
    ):
        admin.create_topics([NewTopic("t", partitions=4)])
        with Producer(first.address) as producer:
            producer.send("t", b"1").result(60)
        with Producer(first.address, delivery_timeout_ms=1_000, request_timeout_ms=500, linger_ms=0) as hasty:
            first.root.rename(tmp_path / "renamed")
            for _ in range(20):
                hasty.send("t", b"2")  # is under way when the brokers end
            assert (first.wait(), second.wait()) == (1, 1)
        for broker in (first, second):
            log = broker.log_path.read_text()
            assert "the folder was removed or renamed while it was in use" in log
            assert "Traceback" not in log
    with BrokerProcess(tmp_path / "renamed"):
        pass


@pytest.mark.timeout(240)
def test_taken_port_foreign_folder_and_bad_setting_are_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "bus-root.json").write_text('{"format_version": 999, "cluster_id": "x"}')
    with BrokerProcess(tmp_path / "root") as broker:
        cases = [
            (["--root", str(tmp_path / "other"), "--listen", broker.address], broker.address),
            (["--root", str(tmp_path / "foreign"), "--listen", "127.0.0.1:0"], "foreign"),
            (["--root", str(tmp_path / "file"), "--listen", "127.0.0.1:0"], "file"),
            (["--root", str(tmp_path / "newer"), "--listen", "127.0.0.1:0"], "999"),
            (["--root", "s3://bucket/bus", "--listen", "127.0.0.1:0"], "s3"),
        ]
        for options, said in cases:
            refused = serve(*options)
            assert refused.returncode == 1, (options, refused.stderr)
            assert said in refused.stderr
            assert "Traceback" not in refused.stderr
    assert (tmp_path / "foreign" / "thesis.txt").read_text() == "mine"


def test_sigterm_answers_what_is_in_flight_and_a_long_poll_ends(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        with (
            Producer(broker.address, retries=0) as producer,
            Consumer(broker.address, auto_offset_reset="latest", fetch_max_wait_ms=50_000) as consumer,
        ):
            consumer.assign([TopicPartition("t", 0)])
            consumer.poll(timeout_ms=0)
            producer.send("t", b"warm").result(timeout=50)
            futures = [producer.send("t", b"x" * 1000) for _ in range(500)]
            stopping = threading.Thread(target=broker.terminate)
            stopping.start()
            outcomes = [future.exception(timeout=30) for future in futures]
            stopping.join(timeout=40)
            assert not stopping.is_alive()
        acknowledged = sum(outcome is None for outcome in outcomes)
        broker.start()
        with Consumer(broker.address) as consumer:
            end = consumer.end_offsets([TopicPartition("t", 0)])[TopicPartition("t", 0)]
        assert end - 1 >= acknowledged


@pytest.mark.timeout(240)
def test_sighup_ends_in_order_and_keeps_what_was_answered_before_its_commit(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        with Admin(broker.address) as admin:
            # Commits are seconds apart: records of acks=1 are answered long before theirs.
            admin.create_topics(
                [NewTopic("t", partitions=1, configs={"commit.interval.ms": 60_000, "commit.burst": 1})]
            )
        with Producer(broker.address, acks=1, linger_ms=0) as producer:
            offsets = [producer.send("t", b"%d" % number).result(timeout=60).offset for number in range(50)]
        assert offsets == list(range(50))
        assert broker.hang_up() == 0
        assert "SIGHUP: finishing the commits in flight" in broker.log_path.read_text()
        broker.start()
        with Consumer(broker.address) as consumer:
            assert consumer.end_offsets([TopicPartition("t", 0)])[TopicPartition("t", 0)] == 50


@pytest.mark.timeout(240)
def test_a_broker_whose_log_nobody_reads_serves_and_ends(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:  # no line has room
        try:
            os.write(writer, b"x" * select.PIPE_BUF)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    broker = BrokerProcess(tmp_path / "root", "--log-level", "DEBUG")
    try:
        broker.start(stderr=writer)
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        with Producer(broker.address) as producer:
            for number in range(20):
                producer.send("t", b"%d" % number).result(timeout=60)
        assert broker.terminate() == 0
    finally:
        broker.kill()
        os.close(reader)
        os.close(writer)


@pytest.mark.timeout(240)
def test_restarted_broker_has_topics_configs_epochs_and_records(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "root") as broker:
        with Admin(broker.address) as admin:
            admin.create_topics([NewTopic("kept", partitions=2, configs={"max.message.bytes": 5_000})])
            admin.create_topics([NewTopic("gone", partitions=1)])
            before = admin.describe_topics(["kept"])["kept"]
            admin.delete_topics(["gone"])
        with Producer(broker.address) as producer:
            producer.send_batch("kept", pa.table({"value": [b"%d" % n for n in range(1000)]}), partition=1).result(50)
        assert broker.terminate() == 0
        broker.start()
        with Admin(broker.address) as admin:
            after = admin.describe_topics(["kept"])["kept"]
            assert after.topic_id == before.topic_id
            assert admin.list_topics() == ["kept"]
            epochs = [partition.leader_epoch for partition in after.partitions]
            assert epochs == [partition.leader_epoch + 1 for partition in before.partitions]
        with Consumer(broker.address, auto_offset_reset="earliest", max_poll_records=10_000) as consumer:
            consumer.assign([TopicPartition("kept", 1)])
            values: list[bytes] = []
            while len(values) < 1000:
                values += [record.value for record in consumer.poll(timeout_ms=5_000)]
            assert values == [b"%d" % n for n in range(1000)]
    assert not (tmp_path / "root" / "topics" / "gone").exists()
