"""The calls of administrators about transactions: what a request names again costs nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bus.broker_api.requests import InvalidArgument
from bus.errors import ErrorCode
from bus.grpc_api.server import transactions
from bus.grpc_api.v1 import bus_pb2 as pb
from bus.transactions import requests as rq
from tests.support.api_bench import FOR_ALL, ApiBench
from tests.support.proofs import proved


def test_transaction_that_is_named_again_is_described_once() -> None:
    asked: list[str] = []

    async def describe(command: rq.DescribeTransaction) -> rq.DescribedTransaction:
        asked.append(command.transactional_id)
        return rq.DescribedTransaction(command.transactional_id, "Empty", 0, 1, 0, 1, 1, 1, None, (), ())

    bench = ApiBench(config=FOR_ALL)
    bench.cluster.prove_leadership = proved
    bench.transactions.coordinator.partition_of = lambda _: 0
    bench.transactions.coordinator.submit = describe
    answer = bench.answer("DescribeTransactions", pb.DescribeTransactionsRequest(transactional_ids=["x", "y", "x"]))
    assert [one.error_code for one in answer.transactions] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert asked == ["x", "y"]


def test_partition_that_is_named_again_is_looked_through_once() -> None:
    looks: list[int] = []

    async def list_staged() -> Any:
        looks.append(1)
        return []

    bench = ApiBench(config=FOR_ALL)
    bench.cluster.prove_leadership = proved
    staged = SimpleNamespace(list_staged=list_staged)
    bench.cluster.host.find = lambda _: SimpleNamespace(stopped=None, producers={}, transactions=staged)
    asked = pb.DescribeProducersRequest(topics=[pb.TopicPartitions(topic="t", partitions=[0, 1, 0])])
    answer = bench.answer("DescribeProducers", asked)
    assert [one.error_code for one in answer.partitions] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert len(looks) == 2


def test_partitions_are_counted_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "decode_partitions", lambda _: pytest.fail("expected a count first"))
    asked = pb.DescribeProducersRequest(topics=[pb.TopicPartitions(topic="t", partitions=range(1_001))])
    with pytest.raises(InvalidArgument):
        ApiBench(config=FOR_ALL).answer("DescribeProducers", asked)
