"""A root whose metadata contradict themselves: the start names the way out, verify finds it, repair mends it."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.cluster_metadata.cluster_records import (
    LeaderChanged,
    ProducerNamed,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    encode_record,
)
from bus.errors import StorageDamaged
from bus.model import ProducerStamp
from bus.storage_delta.root import open_storage
from bus.storage_delta.stores.local import LocalStore
from tests.integration.test_cancelled_calls import produce
from tests.support.cancelled_calls import QuietBroker
from tests.support.stores import led

METADATA = "__cluster_metadata"
BEFORE_PRODUCER_IDS = Path(__file__).parents[2] / "golden" / "root_before_producer_ids"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def steps_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return list(json.loads(result.stdout))


def append(root: Path, *rows: dict[str, Any]) -> None:
    storage = open_storage(str(root))
    try:
        log = led(storage.open_metadata())
        log.append(rows, leader_epoch=log.state.leader_epoch, now_ms=1_800_000_000_000)
    finally:
        storage.close()


def live(root: Path, do: Any) -> None:
    async def one_life() -> None:
        broker = QuietBroker(LocalStore(str(root)))
        await broker.start()
        try:
            await do(broker)
        finally:
            await broker.stop()

    asyncio.run(one_life())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A topic with three records, and a named producer of id 0."""
    root = tmp_path / "root"

    async def fill(broker: QuietBroker) -> None:
        from bus.cluster_metadata.cluster_decisions import CreateTopic

        await broker.cluster.controller.create_topics([CreateTopic("t", 2, {"retention.ms": "77"})])
        await produce(broker, "t")
        await broker.cluster.producers.init("p")

    live(root, fill)
    return root


def topic_id_of(root: Path) -> str:
    found: list[str] = []

    async def look(broker: QuietBroker) -> None:
        found.append(broker.cluster.state.topics["t"].topic_id)

    live(root, look)
    return found[0]


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != ".bus-lock"}


def refuse_to_start(root: Path) -> str:
    async def never(broker: QuietBroker) -> None:
        raise AssertionError("it has started")

    with pytest.raises(StorageDamaged) as caught:
        live(root, never)
    return str(caught.value)


def test_contradictions_are_found_told_rehearsed_and_mended(root: Path) -> None:
    topic_id = topic_id_of(root)
    append(
        root,
        encode_record(TopicCreated("t", "another-id", 2, 0)),
        encode_record(TopicConfigChanged("t", "another-id", "retention.ms", "88")),
        encode_record(ProducerNamed("p", 5, 0, -1)),
        encode_record(LeaderChanged("none", "no-id", 0, 0, 3)),
        {"type": "TopicMoved", "topic": "t"},
        encode_record(LeaderChanged("t", topic_id, 1, 0, 1)),
    )
    message = refuse_to_start(root)
    assert "expected no topic whose name collides with t, found t" in message
    assert "bus log repair __cluster_metadata" in message

    for target in (["--all"], [METADATA]):
        verified = run("log", "verify", *target, "--root", str(root), "--no-data")
        assert verified.exit_code == 1
        for told in ("another-id", "from 0 to 5", "a topic none, found none", "'TopicMoved'", "went from"):
            assert told in verified.output, verified.output

    files = files_of(root)
    rehearsed = steps_of(run("log", "repair", METADATA, "--root", str(root), "--format", "json"))
    assert files_of(root) == files
    given_up = [step["first_offset"] for step in rehearsed if step["action"] == "give up"]
    mended = [step["detail"] for step in rehearsed if step["action"] == "mend"]
    assert len(given_up) == 5
    assert any("the name has id 5, and id 0 may not write any more" in detail for detail in mended)

    done = steps_of(run("log", "repair", METADATA, "--root", str(root), "--execute", "--format", "json"))
    assert [step["detail"] for step in done if step["action"] == "give up"] == [
        step["detail"] for step in rehearsed if step["action"] == "give up"
    ]
    assert list((root / "quarantine" / METADATA / "0").glob("*.parquet"))
    assert run("log", "verify", "--all", "--root", str(root)).exit_code == 0
    assert "nothing to mend" in run("log", "repair", METADATA, "--root", str(root)).stderr

    async def look(broker: QuietBroker) -> None:
        (topic,) = broker.cluster.state.topics.values()
        assert (topic.topic_id, dict(topic.configs)) == (topic_id, {"retention.ms": "77"})
        assert (await produce(broker, "t")).base_offset == 3
        refused = broker.cluster.producers.check(ProducerStamp(0, 0, 0))
        assert refused is not None
        assert broker.cluster.producers.check(ProducerStamp(5, 0, 0)) is None

    live(root, look)


def test_topic_whose_records_are_lost_comes_back_with_its_tables(root: Path) -> None:
    topic_id = topic_id_of(root)
    append(root, encode_record(TopicDeleted("t", topic_id)), {"type": "TopicCreated", "topic": "u"})
    # As if the deletion had never been: the rows of the topic's creation are what cannot be read.
    storage = open_storage(str(root))
    rows = [row for row in led(storage.open_metadata()).replay() if row["topic"] != "t"]
    storage.close()
    shutil.rmtree(root / "topics" / METADATA)
    shutil.copytree(BEFORE_PRODUCER_IDS / "topics" / METADATA, root / "topics" / METADATA)
    shutil.copy(BEFORE_PRODUCER_IDS / "bus-root.json", root / "bus-root.json")
    append(root, *[{key: value for key, value in row.items() if value is not None} for row in rows])
    refuse_to_start(root)
    steps = steps_of(run("log", "repair", METADATA, "--root", str(root), "--execute", "--format", "json"))
    assert any("the topic is brought back with" in step["detail"] for step in steps)

    async def look(broker: QuietBroker) -> None:
        assert broker.cluster.state.topics["t"].topic_id == topic_id
        assert (await produce(broker, "t")).base_offset == 3

    live(root, look)


def test_root_of_an_earlier_version_is_mended_too(tmp_path: Path) -> None:
    """Its table lacks the columns that came later."""
    root = Path(shutil.copytree(BEFORE_PRODUCER_IDS, tmp_path / "root"))
    assert "nothing to mend" in run("log", "repair", METADATA, "--root", str(root)).stderr
    before = sorted(path.name for path in (root / f"topics/{METADATA}/0").iterdir())
    assert "nothing to mend" in run("log", "repair", METADATA, "--root", str(root), "--execute").stderr
    assert sorted(path.name for path in (root / f"topics/{METADATA}/0").iterdir()) == before
