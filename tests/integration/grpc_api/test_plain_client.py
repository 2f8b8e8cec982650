"""A client that has nothing but the contract: stubs generated from bus.proto, plain records, no Arrow, no SDK."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

from tests.support.broker_thread import running_broker

CONTRACT = Path(__file__).parents[3] / "bus/grpc_api/v1"

CLIENT = """
import sys
sys.modules["bus"] = sys.modules["pyarrow"] = None  # neither may be needed
import grpc, bus_pb2 as pb, bus_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = bus_pb2_grpc.BusStub(channel)
    created = stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="plain", partitions=1)]))
    assert created.topics[0].error_code == pb.ERROR_CODE_NONE, created
    records = pb.RecordList(records=[
        pb.Record(key=b"k%d" % n, value=b"v%d" % n, headers=[pb.Header(key="n", value=b"%d" % n)]) for n in range(3)
    ])
    data = pb.PartitionProduceData(topic="plain", partition=0, records=records)
    once = stub.ProduceOnce(pb.ProduceRequest(partitions=[data]))
    assert (once.partitions[0].base_offset, once.partitions[0].version) == (0, 1), once
    answers = list(stub.Produce(iter([pb.ProduceRequest(correlation_id=n, partitions=[data]) for n in range(4)])))
    assert [answer.correlation_id for answer in answers] == [0, 1, 2, 3], answers
    assert [answer.partitions[0].base_offset for answer in answers] == [3, 6, 9, 12], answers
    who = stub.InitProducerId(pb.InitProducerIdRequest())
    assert (who.error_code, who.producer_epoch) == (pb.ERROR_CODE_NONE, 0), who
    def send(base_sequence, epoch=0):
        data = pb.PartitionProduceData(
            topic="plain", partition=0, records=records,
            producer_id=who.producer_id, producer_epoch=epoch, base_sequence=base_sequence,
        )
        return stub.ProduceOnce(pb.ProduceRequest(partitions=[data])).partitions[0]
    first, second, repeat, gap = send(0), send(3), send(0), send(7)
    assert (first.base_offset, second.base_offset) == (15, 18), (first, second)
    assert (repeat.base_offset, repeat.version) == (first.base_offset, first.version), repeat
    assert gap.error_code == pb.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER, gap
    assert send(0, epoch=1).base_offset == 21  # a new epoch begins with sequence 0 ...
    assert send(6).error_code == pb.ERROR_CODE_INVALID_PRODUCER_EPOCH  # ... and ends the one before it
    asked = pb.ResumeProducerPartition(topic="plain", partition=0)
    resumed = stub.ResumeProducer(
        pb.ResumeProducerRequest(producer_id=who.producer_id, producer_epoch=2, partitions=[asked])
    ).partitions[0]
    assert (resumed.last_sequence, resumed.last_epoch) == (2, 1), resumed
    assert send(3, epoch=2).base_offset == 24
    wish = pb.FetchRequest(
        max_wait_ms=1000, min_bytes=1, format=pb.RECORD_FORMAT_RECORDS,
        partitions=[pb.FetchPartition(topic="plain", partition=0, fetch_offset=2)],
    )
    found = stub.FetchOnce(wish).partitions[0]
    assert found.high_watermark == 27
    assert [record.offset for record in found.records.records] == list(range(2, 27)), found
    record = found.records.records[1]
    assert (record.key, record.value, record.headers[0].key, record.headers[0].value) == (b"k0", b"v0", "n", b"0")
    streamed = next(stub.Fetch(iter([wish]))).partitions[0]
    assert streamed.records == found.records
    print("done", flush=True)
"""


def test_client_generated_from_the_contract_produces_and_fetches(tmp_path: Path) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    status = protoc.main(
        ["protoc", f"-I{CONTRACT}", f"--python_out={stubs}", f"--grpc_python_out={stubs}", str(CONTRACT / "bus.proto")]
    )
    assert status == 0
    (stubs / "client.py").write_text(CLIENT)
    with running_broker(tmp_path / "root") as broker:
        client = subprocess.run(
            [sys.executable, str(stubs / "client.py"), f"127.0.0.1:{broker.port}"],
            cwd=stubs,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert client.stdout == "done\n", client.stderr


@pytest.mark.parametrize("service", ["", "bus.v1.Bus"])
def test_health_says_serving_and_reflection_lists_the_service(tmp_path: Path, service: str) -> None:
    import grpc
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with (
        running_broker(tmp_path / "root") as broker,
        grpc.insecure_channel(f"127.0.0.1:{broker.port}") as channel,
    ):
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "bus.v1.Bus" in database.get_services()
        produce = DescriptorPool(database).FindServiceByName("bus.v1.Bus").FindMethodByName("Produce")
        assert produce.input_type.full_name == "bus.v1.ProduceRequest"
