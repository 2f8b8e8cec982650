"""A cluster of the version before this one is upgraded broker by broker, while programs go on: nothing is lost, doubled
or torn, whichever brokers are of which version."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from bus import Admin, BusError, ErrorCode, NewTopic
from bus.cli.main import cli
from bus.client.producer.batch import RecordFuture
from bus.cluster_metadata.cluster_state import LEVEL_MAX
from bus.model import CLUSTER_METADATA_TOPIC, TopicPartition
from tests.support.chaos_programs import Program, told_if_it_fails
from tests.support.chaotic_cluster import BROKERS, ChaoticBroker, ChaoticCluster
from tests.support.earlier_version import LEVEL, unpack_version
from tests.support.record_programs import (
    LEDGER,
    ORDERS,
    IdempotentProducer,
    Member,
    NamedProducer,
    Progress,
    check_ledger,
    check_orders,
    committed_by_group,
    read_all,
    wait_until,
)
from tests.support.transaction_programs import (
    ACCOUNTS,
    COPIES,
    Copier,
    KilledWriter,
    VersionReader,
    Writer,
    check_writers,
    settle_transactions,
    wait_for_copies,
)


class Traffic:
    """The programs that run beside the upgrade, and the judgement of what they leave. One of them is a client of the
    version before: a process that is killed in the middle of its transactions."""

    def __init__(self, cluster: ChaoticCluster, code: Path, journal: Path) -> None:
        addresses = self._addresses = cluster.addresses
        self._root = cluster.root
        self._progress = Progress()
        self._orders = IdempotentProducer(addresses)
        self._ledger = NamedProducer(addresses)
        self._member = Member(addresses, self._progress)
        self._writer = Writer(addresses, "writer", 0)
        self._killed = KilledWriter(addresses, "earlier-writer", 0, journal, code=code)
        self._copier = Copier(addresses, "copier", 0)
        self._reader = VersionReader(cluster.root)
        self.programs: list[Program] = [
            self._orders,
            self._ledger,
            self._member,
            self._writer,
            self._killed,
            self._copier,
            self._reader,
        ]

    def wait_for_progress(self) -> None:
        """Wait until each program has finished something that it began after this call."""
        sent, committed, killed = len(self._orders.futures), len(self._writer.committed), self._killed.killed
        read, versions = sum(self._progress.next_offsets.values()), self._reader.versions

        def have_progressed() -> list[bool]:
            return [
                len(self._orders.futures) > sent and self._orders.futures[sent].done(),
                len(self._writer.committed) > committed + 1,
                self._killed.killed > killed,
                sum(self._progress.next_offsets.values()) > read,
                self._reader.versions > versions,
            ]

        wait_until(have_progressed, [True] * 5, self.programs)

    def note_written_by(self, admin: Admin, broker_id: int) -> dict[int, RecordFuture]:
        """Wait until that broker has acknowledged records as the leader of a partition of `orders`; return them by
        their number."""
        wait_until(lambda: "orders" in led_by(admin, broker_id), True, self.programs)
        sent, led = len(self._orders.futures), led_by(admin, broker_id)["orders"]

        def find_written() -> dict[int, RecordFuture]:
            futures = enumerate(self._orders.futures[sent:], sent)
            return {number: one for number, one in futures if one.done() and one.result(0).partition in led}

        wait_until(lambda: bool(find_written()), True, self.programs)
        self.wait_for_progress()
        return find_written()

    def check_readable(self, written: dict[int, RecordFuture]) -> None:
        """Judge that the brokers that are there now have those records of `orders`, where their leader said."""
        records = read_all(self._addresses, ORDERS)
        there = {(one.partition, record.offset): record.value for one, some in records.items() for record in some}
        for number, future in written.items():
            place = future.result(0)
            assert place.offset < 0 or there[place.partition, place.offset] == b"%d" % number

    def finish(self) -> None:
        for program in (self._orders, self._ledger, self._writer, self._killed):
            program.end()
        self._writer.close()
        settle_transactions(self._addresses, [self._writer.name, self._killed.name])
        rows = wait_for_copies(self._root, self.programs)
        check_writers([self._writer], self._killed, rows)
        assert self._writer.committed

        wait_until(lambda: sum(not future.done() for future in self._orders.futures), 0, self.programs)
        records = read_all(self._addresses, [*ORDERS, *LEDGER])
        check_orders({one: records[one] for one in ORDERS}, self._orders.futures)
        check_ledger({one: records[one] for one in LEDGER}, self._ledger.last_values)
        ends = {one: len(some) for one, some in records.items()}
        wait_until(lambda: committed_by_group(self._addresses), ends, self.programs)
        assert self._progress.next_offsets == ends
        for program in (self._member, self._copier, self._reader):
            program.end()

    def close(self) -> None:
        self._orders.producer.close(timeout=10)
        self._member.consumer.close()
        self._copier.close()


@pytest.mark.timeout(600)
def test_a_cluster_of_the_version_before_is_upgraded_broker_by_broker_while_programs_go_on(tmp_path: Path) -> None:
    code = unpack_version(tmp_path)
    with ChaoticCluster(tmp_path, code=code) as cluster, told_if_it_fails(cluster):
        topics = {"orders": ORDERS, "ledger": LEDGER, "accounts": ACCOUNTS, "copies": COPIES}
        with Admin(cluster.addresses) as admin:
            admin.create_topics([NewTopic(name, len(partitions)) for name, partitions in topics.items()])
            wait_until(lambda: level_and_highest(admin), (LEVEL, {LEVEL}), [])
        traffic = Traffic(cluster, code, tmp_path / "journal")
        with ExitStack() as stack:
            for program in traffic.programs:
                stack.enter_context(program)
            upgrade(cluster, traffic)
            traffic.finish()
        traffic.close()
        assert cluster.stop() == [0] * BROKERS
        verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(cluster.root)})
        assert verified.exit_code == 0, verified.output


def upgrade(cluster: ChaoticCluster, traffic: Traffic) -> None:
    with Admin(cluster.addresses) as admin:
        traffic.wait_for_progress()
        first = coordinator_of_group(admin)  # so that the version before takes over a group, too
        for broker in sorted(cluster.brokers, key=lambda one: one.broker_id != first):
            traffic.wait_for_progress()
            with pytest.raises(BusError) as refused:
                admin.update_features({"bus.version": LEVEL_MAX})
            assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
            assert broker.process.terminate() == 0
            broker.process.run_version(None)
            broker.process.start()
            cluster.tell(f"broker {broker.broker_id} is upgraded")
            if broker.broker_id == first:
                leave_to_the_version_before(cluster, broker, traffic, admin)
        wait_until(lambda: level_and_highest(admin), (LEVEL, {LEVEL_MAX}), traffic.programs)
        traffic.wait_for_progress()
        admin.update_features({"bus.version": LEVEL_MAX})
        cluster.tell(f"bus.version is {LEVEL_MAX}")
        wait_until(lambda: level_and_highest(admin), (LEVEL_MAX, {LEVEL_MAX}), traffic.programs)
        traffic.wait_for_progress()
        assert not any(is_managed(cluster, name) for name in (*ORDERS, *LEDGER))
        for _ in range(2):
            done = CliRunner().invoke(
                cli, ["log", "upgrade", "--all"], env={"BUS_ADDRESS": ",".join(cluster.addresses)}
            )
            assert done.exit_code == 0, done.output
            cluster.tell("the tables keep other engines from writing")
            traffic.wait_for_progress()
        for name in (*ORDERS, *LEDGER, TopicPartition(CLUSTER_METADATA_TOPIC, 0)):
            assert is_managed(cluster, name), name


def is_managed(cluster: ChaoticCluster, name: TopicPartition) -> bool:
    protocol = DeltaTable(str(cluster.root / "topics" / name.topic / str(name.partition))).protocol()
    return "busManaged" in (protocol.writer_features or ())


def leave_to_the_version_before(cluster: ChaoticCluster, broker: ChaoticBroker, traffic: Traffic, admin: Admin) -> None:
    """Have brokers of the version before take over what the first one of this version has led and written, and the
    group that it has coordinated."""
    wait_until(lambda: coordinator_of_group(admin), broker.broker_id, traffic.programs)
    written = traffic.note_written_by(admin, broker.broker_id)
    before = committed_by_group(cluster.addresses)
    wait_until(lambda: committed_by_group(cluster.addresses) != before, True, traffic.programs)
    committed = committed_by_group(cluster.addresses)
    assert broker.process.terminate() == 0
    cluster.tell(f"the version before takes over {len(written)} records that broker {broker.broker_id} has written")
    wait_until(lambda: led_by(admin, broker.broker_id), {}, traffic.programs)
    traffic.check_readable(written)
    wait_until(lambda: coordinator_of_group(admin) != broker.broker_id, True, traffic.programs)
    found = committed_by_group(cluster.addresses)
    assert all(found[one] >= offset for one, offset in committed.items())
    traffic.wait_for_progress()
    broker.process.start()


def coordinator_of_group(admin: Admin) -> int:
    return admin.describe_groups(["g"])["g"].coordinator.broker_id


def led_by(admin: Admin, broker_id: int) -> dict[str, set[int]]:
    """The partitions that the broker leads, by topic."""
    found = {
        topic: {one.partition for one in described.partitions if one.leader_id == broker_id}
        for topic, described in admin.describe_topics().items()
    }
    return {topic: partitions for topic, partitions in found.items() if partitions}


def level_and_highest(admin: Admin) -> tuple[int, set[int]]:
    """The level of bus.version that is finalized, and the highest one of each broker, as the broker knows it that is
    asked: it may follow a moment behind."""
    found = admin.describe_cluster(include_fenced_brokers=True)
    return found.feature_level, {broker.feature_levels[1] for broker in found.brokers}
