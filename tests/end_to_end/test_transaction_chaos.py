"""Transactions in three brokers whose processes and links fail as a seed chooses, with producers that die: in every
version of every table a transaction is there as a whole, or not at all.

BUS_SEEDS says how many seeds are played, BUS_SEED the first one, BUS_FAULTS how many faults each has, BUS_FAULT_KINDS
which ones, as in "kill kill halt".
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from bus import Admin, NewTopic
from bus.cli.main import cli
from tests.support.chaos_programs import Program, told_if_it_fails
from tests.support.chaotic_cluster import BROKERS, ChaoticCluster, Fault, choose_faults
from tests.support.seeds import fault_count, seeds
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

FAULTS = fault_count(4)


@pytest.mark.timeout(180 + 20 * FAULTS)
@pytest.mark.parametrize("seed", seeds(1))
def test_a_transaction_is_there_as_a_whole_or_not_at_all(seed: int, tmp_path: Path) -> None:
    faults = choose_faults(random.Random(seed), FAULTS)
    with ChaoticCluster(tmp_path) as cluster, told_if_it_fails(cluster):
        writers = run_programs(cluster, faults, seed, tmp_path / "journal")
        assert cluster.stop() == [0] * BROKERS
        verified = CliRunner().invoke(cli, ["log", "verify", "--all"], env={"BUS_ROOT": str(cluster.root)})
        assert verified.exit_code == 0, verified.output
    assert any(writer.committed for writer in writers)


def run_programs(cluster: ChaoticCluster, faults: list[Fault], seed: int, journal: Path) -> list[Writer]:
    with Admin(cluster.addresses) as admin:
        admin.create_topics([NewTopic("accounts", len(ACCOUNTS)), NewTopic("copies", len(COPIES))])
    writers = [Writer(cluster.addresses, f"writer-{number}", seed) for number in range(2)]
    killed = KilledWriter(cluster.addresses, "killed-writer", seed, journal)
    copiers = [Copier(cluster.addresses, f"copier-{number}", seed) for number in range(2)]
    reader = VersionReader(cluster.root)
    programs: list[Program] = [*writers, killed, *copiers, reader]
    with ExitStack() as stack:
        for program in programs:
            stack.enter_context(program)
        cluster.play(faults)
        for writer in writers:
            writer.end()
            writer.close()
        killed.end()
        cluster.tell(f"the writers have ended, one was killed {killed.killed} times")
        settle_transactions(cluster.addresses, [*(writer.name for writer in writers), killed.name])
        rows = wait_for_copies(cluster.root, programs)
        for program in (*copiers, reader):
            program.end()
        for copier in copiers:
            copier.close()
    check_writers(writers, killed, rows)
    assert reader.versions > len(ACCOUNTS)
    return writers
