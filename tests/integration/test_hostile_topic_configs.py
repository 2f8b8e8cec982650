"""Each topic config with hostile values: where one is accepted, the partition opens after a restart, is maintained, and
its records are read."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from bus.errors import ErrorCode
from bus.grpc_api.server.records.produce_decoding import parse_call
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.model import TopicPartition
from bus.records.arrow_batches import encode_arrow
from bus.settings.topic import TOPIC_CONFIGS
from bus.storage_delta.verify.verification import verify_partition
from tests.support.cancelled_calls import QuietBroker
from tests.support.memory_store import MemoryStore

VALUES = (
    *("", " ", "0", "1", "-1", "-2", " 5 ", "1_000", "0x10", "٣", "1e3", "0.5", "-0.0", "1e309", "nan", "-inf"),
    *("2147483647", "9223372036854775807", "9223372036854775808", "9" * 400, "true", "None", "\0", "\n"),
    *("compact", "delete,compact", "compact,compact", ",", "delete,", "Delete", "zstd", "gzip", "LogAppendTime"),
    *("CreateTime", "x" * 10_000, "'; DROP TABLE t", "\ud7ff"),
)
ARROW = encode_arrow(pa.record_batch({"key": pa.array([b"k", b"k"]), "value": pa.array([b"v" * 100, None])}))
TAKEN = {ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP}


def test_partition_of_every_config_that_is_accepted_is_served_after_a_restart() -> None:
    store = MemoryStore()
    accepted: dict[str, tuple[str, str]] = {}

    async def configure() -> None:
        broker = QuietBroker(store)
        await broker.start()
        cases = [(name, value) for name in TOPIC_CONFIGS for value in VALUES]
        topics = [
            pb.NewTopic(name=f"t{number}", partitions=1, configs={name: value})
            for number, (name, value) in enumerate(cases)
        ]
        for start in range(0, len(topics), 500):
            answer = await broker.call("CreateTopics", pb.CreateTopicsRequest(topics=topics[start : start + 500]))
            for topic, case in zip(answer.topics, cases[start:], strict=False):
                assert topic.error_code in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG), (case, topic.error_message)
                if not topic.error_code:
                    accepted[topic.name] = case
        for number, (name, value) in enumerate(cases):
            change = pb.AlterConfigsResource(
                resource=pb.ConfigResource(type=pb.RESOURCE_TYPE_TOPIC, name=min(accepted)),
                operations=[pb.AlterConfigOp(name=name, value=value)],
            )
            request = pb.AlterConfigsRequest(resources=[change], validate_only=True)
            (result,) = (await broker.call("AlterConfigs", request)).resources
            assert bool(result.error_code) == (f"t{number}" not in accepted), (name, value, result.error_message)
        await broker.stop()

    async def use(broker: QuietBroker) -> None:
        for topic, case in accepted.items():
            data = pb.PartitionProduceData(topic=topic, arrow=ARROW)
            request = parse_call(pb.ProduceRequest(partitions=[data]).SerializeToString())
            (answer,) = (await broker.call("ProduceOnce", request)).partitions
            assert answer.error_code in TAKEN, (case, answer.error_message)
            for action in pb.MaintenanceAction.values():
                maintained = pb.MaintainLogRequest(topic=topic, partitions=[0], action=action)  # type: ignore[arg-type]
                for done in await broker.call("MaintainLog", maintained):
                    assert done.error_code in (ErrorCode.NONE, ErrorCode.POLICY_VIOLATION), (case, done.error_message)

    async def restart() -> None:
        broker = QuietBroker(store)
        await broker.start()
        for topic, case in accepted.items():
            assert broker.cluster.host.find_error(TopicPartition(topic, 0)) is None, case
        await use(broker)
        await broker.stop()

    asyncio.run(configure())
    asyncio.run(restart())
    assert len(accepted) > 50
    for topic, case in accepted.items():
        assert not verify_partition(store, TopicPartition(topic, 0)).breaches, case
