"""Identities of idempotent producers over the wire: given once, fenced by name, resumed where they ended."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from bus.broker import Broker
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.grpc_api.v1 import bus_pb2_grpc
from bus.records.arrow_batches import encode_arrow
from bus.storage_delta.root import open_storage
from tests.support.broker_process import BrokerProcess
from tests.support.broker_thread import running_broker

Identity = tuple[int, int]


@contextmanager
def stub_of(port: int) -> Iterator[bus_pb2_grpc.BusStub]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield bus_pb2_grpc.BusStub(channel)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("bus") / "root") as broker:
        yield broker


@pytest.fixture(scope="module")
def stub(broker: Broker) -> Iterator[bus_pb2_grpc.BusStub]:
    with stub_of(broker.port) as stub:
        stub.CreateTopics(pb.CreateTopicsRequest(topics=[pb.NewTopic(name="t", partitions=3)]))
        yield stub


def init(
    stub: bus_pb2_grpc.BusStub, name: str = "", producer_id: int | None = None, epoch: int = 0
) -> pb.InitProducerIdResponse:
    request = pb.InitProducerIdRequest(name=name, producer_id=producer_id, producer_epoch=epoch)
    return stub.InitProducerId(request)  # type: ignore[no-any-return]


def identity(answer: pb.InitProducerIdResponse) -> Identity:
    assert answer.error_code == 0, answer
    return answer.producer_id, answer.producer_epoch


def produce(
    stub: bus_pb2_grpc.BusStub, who: Identity, base_sequence: int, count: int = 1, *, partition: int = 0
) -> pb.PartitionProduceResponse:
    values = pa.array([b"%d" % (base_sequence + n) for n in range(count)])
    data = pb.PartitionProduceData(
        topic="t",
        partition=partition,
        arrow=encode_arrow(pa.RecordBatch.from_arrays([values], names=["value"])),
        producer_id=who[0],
        producer_epoch=who[1],
        base_sequence=base_sequence,
    )
    return stub.ProduceOnce(pb.ProduceRequest(partitions=[data])).partitions[0]  # type: ignore[no-any-return]


def error_of(answer: pb.PartitionProduceResponse | pb.InitProducerIdResponse) -> str:
    return pb.ErrorCode.Name(answer.error_code).removeprefix("ERROR_CODE_")


def test_ids_without_a_name_are_never_the_same_and_a_thousand_of_them_cost_one_commit(tmp_path: Path) -> None:
    with running_broker(tmp_path / "root") as broker, stub_of(broker.port) as stub:
        before = broker.cluster.metadata.state.version
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: identity(init(stub)), range(2500)))
        assert {epoch for _, epoch in answers} == {0}
        ids = [producer_id for producer_id, _ in answers]
        assert sorted(ids) == list(range(2500))
        assert broker.cluster.metadata.state.version == before + 3


def test_ids_are_not_given_again_after_kill_9(tmp_path: Path) -> None:
    given: list[int] = []
    named: list[Identity] = []
    broker = BrokerProcess(tmp_path / "root")
    for _ in range(3):
        broker.start()
        with stub_of(broker.port) as stub:
            given += [identity(init(stub))[0] for _ in range(5)]
            named.append(identity(init(stub, "billing")))
        broker.kill()
    assert len(set(given)) == len(given)
    (producer_id,) = {producer_id for producer_id, _ in named}
    assert producer_id not in given
    assert [epoch for _, epoch in named] == [0, 1, 2]


FIRST, SECOND = b"1" * 16, b"2" * 16


def test_a_late_repeat_of_the_first_request_does_not_fence_its_own_instance(stub: bus_pb2_grpc.BusStub) -> None:
    asked = pb.InitProducerIdRequest(name="orders", instance_id=FIRST)
    with ThreadPoolExecutor(8) as threads:
        answers = set(threads.map(lambda _: identity(stub.InitProducerId(asked)), range(8)))
    (first,) = answers
    assert produce(stub, first, 0).error_code == 0
    assert identity(stub.InitProducerId(asked)) == first
    assert produce(stub, first, 1).error_code == 0


def test_a_repeat_behind_another_instance_is_a_new_one(stub: bus_pb2_grpc.BusStub) -> None:
    asked = pb.InitProducerIdRequest(name="invoices", instance_id=FIRST)
    producer_id, epoch = identity(stub.InitProducerId(asked))
    other = pb.InitProducerIdRequest(name="invoices", instance_id=SECOND)
    assert identity(stub.InitProducerId(other)) == (producer_id, epoch + 1)
    assert identity(init(stub, "invoices")) == (producer_id, epoch + 2), "an instance that does not say who it is"
    assert identity(stub.InitProducerId(other)) == (producer_id, epoch + 3)
    assert identity(stub.InitProducerId(asked)) == (producer_id, epoch + 4)


def test_the_id_of_an_instance_has_16_bytes(stub: bus_pb2_grpc.BusStub) -> None:
    answer = stub.InitProducerId(pb.InitProducerIdRequest(name="orders", instance_id=b"short"))
    assert answer.error_message == "expected the id of an instance as 16 bytes, found 5"


def test_two_brokers_on_one_root_never_give_the_same_id(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with running_broker(root, storage=open_storage(str(root), exclusive=False)) as old, stub_of(old.port) as to_old:
        from_old = [identity(init(to_old))[0] for _ in range(20)]
        assert identity(init(to_old, "billing")) == (20, 0)
        with running_broker(root, storage=open_storage(str(root), exclusive=False)) as new, stub_of(new.port) as to_new:
            from_new = [identity(init(to_new))[0] for _ in range(20)]
            assert identity(init(to_new, "billing")) == (20, 1)
            from_old += [identity(init(to_old))[0] for _ in range(20)]
            # What has to be committed first, the fenced one cannot give any more.
            assert error_of(init(to_old, "billing")) == "NOT_CONTROLLER"
            assert error_of(init(to_old, "audit")) == "NOT_CONTROLLER"
            assert identity(init(to_new, "billing")) == (20, 2)
    assert not set(from_old) & set(from_new)
    assert len({*from_old, *from_new}) == 60


def test_second_instance_of_a_name_fences_the_first_at_produce_and_at_resume(stub: bus_pb2_grpc.BusStub) -> None:
    zombie = identity(init(stub, "fenced"))
    assert produce(stub, zombie, 0, 2).base_offset >= 0
    heir = identity(init(stub, "fenced"))
    assert heir == (zombie[0], zombie[1] + 1)
    for partition in range(3):  # also where neither has written yet
        refused = produce(stub, zombie, 2, partition=partition)
        assert error_of(refused) == "PRODUCER_FENCED"
        assert f"epoch {zombie[1]} was fenced" in refused.error_message
    asked = pb.ResumeProducerPartition(topic="t", partition=0)
    resumed = stub.ResumeProducer(
        pb.ResumeProducerRequest(producer_id=zombie[0], producer_epoch=zombie[1], partitions=[asked])
    )
    assert error_of(resumed.partitions[0]) == "PRODUCER_FENCED"
    assert error_of(init(stub, "fenced", *zombie)) == "PRODUCER_FENCED"


def test_name_goes_on_where_its_records_ended(stub: bus_pb2_grpc.BusStub) -> None:
    first = identity(init(stub, "resumed"))
    written = produce(stub, first, 0, 5, partition=1)
    heir = identity(init(stub, "resumed"))
    asked = [pb.ResumeProducerPartition(topic="t", partition=partition) for partition in (1, 2, 9)]
    request = pb.ResumeProducerRequest(producer_id=heir[0], producer_epoch=heir[1], partitions=asked)
    for _ in range(2):
        there, nothing, unknown = stub.ResumeProducer(request).partitions
        assert (there.last_sequence, there.last_epoch, there.error_code) == (4, first[1], 0)
        assert there.version >= written.version
        assert (nothing.last_sequence, nothing.last_epoch, nothing.error_code) == (-1, -1, 0)
        assert error_of(unknown) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert produce(stub, heir, 5, partition=1).base_offset == written.base_offset + 5


def test_holder_of_a_name_may_raise_its_epoch_and_ask_twice(stub: bus_pb2_grpc.BusStub) -> None:
    holder = identity(init(stub, "raised"))
    raised = identity(init(stub, "raised", *holder))
    assert raised == (holder[0], holder[1] + 1)
    assert identity(init(stub, "raised", *holder)) == raised
    assert error_of(produce(stub, holder, 0)) == "PRODUCER_FENCED"
    assert produce(stub, raised, 0).error_code == 0


def test_name_whose_epoch_is_kept_counts_its_epochs_itself_and_partitions_refuse_what_is_too_low(
    stub: bus_pb2_grpc.BusStub,
) -> None:
    def kept() -> Identity:
        return identity(stub.InitProducerId(pb.InitProducerIdRequest(name="counting", keep_epoch=True)))

    producer_id, epoch = kept()
    assert epoch == 0
    assert kept() == (producer_id, 0), "another instance changes nothing"
    first = produce(stub, (producer_id, 3), 0, 2)
    assert produce(stub, (producer_id, 3), 0, 2).base_offset == first.base_offset
    assert produce(stub, (producer_id, 8), 0, 2).base_offset == first.base_offset + 2
    assert kept() == (producer_id, 0)
    assert error_of(produce(stub, (producer_id, 7), 0)) == "INVALID_PRODUCER_EPOCH"
    assert produce(stub, (producer_id, 7), 0, partition=1).error_code == 0, "each partition for itself"
    assert identity(init(stub, "counting")) == (producer_id, 1)
    assert error_of(produce(stub, (producer_id, 0), 0, partition=2)) == "PRODUCER_FENCED"


def payload_of(form: str, values: list[bytes]) -> dict[str, object]:
    """Produce fields that carry the same records: plain, as Arrow small and large (cut out of the request), packed."""
    if form == "records":
        return {"records": pb.RecordList(records=[pb.Record(value=value) for value in values])}
    arrow = encode_arrow(pa.RecordBatch.from_arrays([pa.array(values)], names=["value"]))
    if form != "gzip":
        return {"arrow": arrow}
    packed = pa.Codec("gzip").compress(arrow, asbytes=True)
    return {"arrow": packed, "codec": pb.PAYLOAD_CODEC_GZIP, "uncompressed_bytes": len(arrow)}


@pytest.mark.parametrize(("form", "padding"), [("records", 1), ("arrow", 1), ("arrow", 40_000), ("gzip", 40_000)])
def test_batch_in_any_form_is_taken_once_however_often_it_comes(
    stub: bus_pb2_grpc.BusStub, form: str, padding: int
) -> None:
    producer_id, epoch = identity(init(stub))

    def request(base_sequence: int) -> pb.ProduceRequest:
        values = [b"%d" % (base_sequence + place) + b"." * padding for place in range(2)]
        data = pb.PartitionProduceData(
            topic="t",
            partition=2,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=base_sequence,
            **payload_of(form, values),  # type: ignore[arg-type]
        )
        return pb.ProduceRequest(partitions=[data])

    sequences = [0, 0, 2, 0, 4, 2, 8]
    answers = [answer.partitions[0] for answer in stub.Produce(iter([request(base) for base in sequences]))]
    first = answers[0].base_offset
    assert [answer.base_offset for answer in answers] == [first + base for base in sequences[:-1]] + [-1]
    assert error_of(answers[-1]) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    asked = pb.FetchPartition(topic="t", partition=2, fetch_offset=first)
    found = stub.FetchOnce(pb.FetchRequest(format=pb.RECORD_FORMAT_RECORDS, partitions=[asked])).partitions[0]
    assert [int(record.value.rstrip(b".")) for record in found.records.records] == list(range(6))


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (pb.InitProducerIdRequest(name="no good"), "INVALID_REQUEST", "expected a producer name of a-z"),
        (pb.InitProducerIdRequest(name="x" * 250), "INVALID_REQUEST", "1 to 249 characters, found 250"),
        (pb.InitProducerIdRequest(producer_id=1), "INVALID_REQUEST", "expected a producer id with a name only"),
        (pb.InitProducerIdRequest(keep_epoch=True), "INVALID_REQUEST", "expected a name whose epoch is to be kept"),
        (pb.InitProducerIdRequest(name="n", producer_epoch=3), "INVALID_REQUEST", "expected a producer id with"),
        (pb.InitProducerIdRequest(name="n", producer_id=-1), "INVALID_REQUEST", "found -1 and 0"),
        (pb.InitProducerIdRequest(name="n", producer_id=1, producer_epoch=40_000), "INVALID_REQUEST", "and 40000"),
        (pb.InitProducerIdRequest(name="n", producer_id=1), "INVALID_PRODUCER_ID_MAPPING", "has no id yet"),
    ],
)
def test_bad_request_for_an_identity_is_refused_by_name(
    stub: bus_pb2_grpc.BusStub, request_: pb.InitProducerIdRequest, error: str, message: str
) -> None:
    answer = stub.InitProducerId(request_)
    assert (error_of(answer), answer.producer_id, answer.producer_epoch) == (error, -1, -1)
    assert message in answer.error_message


@pytest.mark.parametrize(
    ("who", "error"),
    [((-1, 0), "INVALID_REQUEST"), ((0, 40_000), "INVALID_REQUEST"), ((1 << 40, 0), "INVALID_PRODUCER_ID_MAPPING")],
)
def test_bad_identity_resumes_nothing(stub: bus_pb2_grpc.BusStub, who: Identity, error: str) -> None:
    asked = pb.ResumeProducerPartition(topic="t", partition=0)
    request = pb.ResumeProducerRequest(producer_id=who[0], producer_epoch=who[1], partitions=[asked])
    (answer,) = stub.ResumeProducer(request).partitions
    assert (error_of(answer), answer.last_sequence, answer.version) == (error, -1, -1)
    assert answer.error_message
