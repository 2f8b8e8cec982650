"""Three brokers whose processes and links fail as a seed chooses, while programs go on: nothing is lost or doubled.

BUS_SEEDS says how many seeds are played, BUS_SEED the first one, BUS_FAULTS how many faults each has.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from bus import Admin, NewTopic
from bus.cli.main import cli
from bus.storage_delta.log.listing import partition_folder
from tests.support.chaos_programs import told_if_it_fails
from tests.support.chaotic_cluster import BROKERS, ChaoticCluster, Fault, choose_faults
from tests.support.record_programs import (
    LEDGER,
    ORDERS,
    DeltaReader,
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
from tests.support.seeds import fault_count, seeds

FAULTS = fault_count(5)


def check_tables(root: Path) -> None:
    verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(root)})
    assert verified.exit_code == 0, verified.output
    for one in (*ORDERS, *LEDGER):
        table: pa.Table = DeltaTable(str(root / partition_folder(one))).to_pyarrow_table()
        assert table.num_rows > 0


@pytest.mark.timeout(180 + 20 * FAULTS)
@pytest.mark.parametrize("seed", seeds(1))
def test_programs_go_on_through_all_faults_and_each_record_is_there_once(seed: int, tmp_path: Path) -> None:
    faults = choose_faults(random.Random(seed), FAULTS)
    with ChaoticCluster(tmp_path) as cluster, told_if_it_fails(cluster):
        run_programs(cluster, faults)
        assert cluster.stop() == [0] * BROKERS
        check_tables(cluster.root)


def run_programs(cluster: ChaoticCluster, faults: list[Fault]) -> None:
    with Admin(cluster.addresses) as admin:
        admin.create_topics([NewTopic("orders", len(ORDERS)), NewTopic("ledger", len(LEDGER))])
    progress = Progress()
    orders, ledger, delta = (
        IdempotentProducer(cluster.addresses),
        NamedProducer(cluster.addresses),
        DeltaReader(cluster.root),
    )
    members = [Member(cluster.addresses, progress) for _ in range(2)]
    programs = [orders, ledger, *members, delta]
    with ExitStack() as stack:
        for program in programs:
            stack.enter_context(program)
        cluster.play(faults)
        orders.end()
        ledger.end()
        wait_until(lambda: sum(not future.done() for future in orders.futures), 0, programs)
        cluster.tell("everything is acknowledged")
        records = read_all(cluster.addresses, [*ORDERS, *LEDGER])
        check_orders({one: records[one] for one in ORDERS}, orders.futures)
        check_ledger({one: records[one] for one in LEDGER}, ledger.last_values)
        ends = {one: len(some) for one, some in records.items()}
        wait_until(lambda: committed_by_group(cluster.addresses), ends, programs)
        assert progress.next_offsets == ends
        cluster.tell("the group is at the end")
        for program in (*members, delta):
            program.end()
    assert delta.rounds > 0
    orders.producer.close(timeout=10)
    for member in members:
        member.consumer.close()
