"""The history of a group, read back by Spark's own Delta with time travel: at a version, who had what and what was
committed.

The judge is what the coordinator said at that version's time; compaction comes in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from bus import Admin, Consumer, NewTopic
from bus.model import CONSUMER_OFFSETS_TOPIC, TopicPartition
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker
from tests.support.member_processes import wait_until

GROUP = "billing"
PARTITIONS = [TopicPartition("orders", number) for number in range(4)]
CONFIG = replace(BrokerConfig(), offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
MORE_COMMITS = 60  # so many that compaction begins, and takes what came before


@dataclass(frozen=True)
class Moment:
    """The group as its coordinator describes it, when the table is at `version`."""

    version: int
    state: str
    generation: int
    members: Mapping[str, Sequence[int]]  # by client id
    committed: Mapping[int, int]


class Group:
    def __init__(self, root: Path, address: str, stack: ExitStack) -> None:
        self.table = str(root / "topics" / CONSUMER_OFFSETS_TOPIC / "0")
        self.moments: list[Moment] = []
        self._address = address
        self._stack = stack
        self._admin = stack.enter_context(Admin(address))
        self._admin.create_topics([NewTopic("orders", partitions=len(PARTITIONS))])
        self._members: dict[str, Consumer] = {}

    def join(self, client_id: str) -> None:
        member = Consumer(self._address, group_id=GROUP, client_id=client_id, enable_auto_commit=False)
        self._members[client_id] = self._stack.enter_context(member)
        member.subscribe(["orders"])
        self._settle()

    def leave(self, client_id: str) -> None:
        self._members.pop(client_id).close()
        self._settle()

    def commit(self, client_id: str, offset: int) -> None:
        """Commit offsets of all its partitions."""
        member = self._members[client_id]
        member.commit(dict.fromkeys(member.assignment(), offset))

    def note(self) -> None:
        """Nothing changes the group while this looks."""
        group = self._admin.describe_groups([GROUP])[GROUP]
        members = {member.client_id: [one.partition for one in member.partitions] for member in group.members}
        committed = {key.partition: found.offset for key, found in self._admin.list_group_offsets(GROUP).items()}
        self.moments.append(Moment(self.version(), group.state, group.generation, members, committed))

    def version(self) -> int:
        return int(DeltaTable(self.table).version())

    def is_compacted(self) -> bool:
        return any(commit["operation"] == "COMPACT" for commit in DeltaTable(self.table).history())

    def _settle(self) -> None:
        def is_settled() -> bool:
            for member in self._members.values():
                member.poll(20)
            owned = sorted(one for member in self._members.values() for one in member.assignment())
            if owned != (PARTITIONS if self._members else []):
                return False
            group = self._admin.describe_groups([GROUP])[GROUP]
            return group.state in ("Stable", "Empty") and len(group.members) == len(self._members)

        wait_until(is_settled, "the group is settled, and each partition has one owner")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with running_broker(tmp_path, config=CONFIG) as broker, ExitStack() as stack:
        yield Group(tmp_path, f"127.0.0.1:{broker.port}", stack)


def moment_at(spark: SparkSession, table: str, version: int) -> Moment:
    """Return the state by the last record of each key in that version."""
    rows = spark.sql(
        f"""SELECT value.* FROM delta.`{table}` VERSION AS OF {version} WHERE value.group_id = '{GROUP}'
            QUALIFY row_number() OVER (PARTITION BY key ORDER BY offset DESC) = 1"""
    ).collect()
    (stored,) = [row for row in rows if row.type == "GroupStored"]
    members = {
        member.client_id: sorted(place.partition for place in member.partitions) for member in stored.members or ()
    }
    committed = {row.partition: row.committed_offset for row in rows if row.type == "OffsetCommitted"}
    return Moment(version, stored.state, stored.generation, members, committed)


def test_each_version_tells_the_members_their_partitions_and_offsets_of_its_time_also_after_compaction(
    spark: SparkSession, group: Group
) -> None:
    group.join("first")
    group.commit("first", 3)
    group.note()
    group.join("second")
    group.commit("second", 5)
    group.note()
    group.leave("first")
    group.commit("second", 7)
    group.note()
    for offset in range(8, 8 + MORE_COMMITS):
        group.commit("second", offset)
    wait_until(group.is_compacted, "the table is compacted")
    group.leave("second")
    group.note()

    assert [(moment.state, sorted(moment.members)) for moment in group.moments] == [
        ("Stable", ["first"]),
        ("Stable", ["first", "second"]),
        ("Stable", ["second"]),
        ("Empty", []),
    ]
    assert [moment_at(spark, group.table, moment.version) for moment in group.moments] == group.moments
    generations = spark.sql(
        f"SELECT DISTINCT value.generation FROM delta.`{group.table}` WHERE value.type = 'GroupStored'"
    ).collect()
    assert group.moments[0].generation not in [row.generation for row in generations], "compaction took it"
