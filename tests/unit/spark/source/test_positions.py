from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bus.model import TopicPartition
from bus.spark.source.planning import Sharing
from bus.spark.source.positions import (
    KafkaOffsets,
    NotOffsets,
    QueryOffsets,
    decode_query_offsets,
    parse_assignment,
    parse_partitions,
)

ORDERS_0, ORDERS_2, ORDERS_10 = (TopicPartition("orders", number) for number in (0, 2, 10))
OFFSETS = QueryOffsets({ORDERS_10: 7, ORDERS_2: 5}, {"orders": "id-1"}, query_id="q", lost=3)


def test_offsets_come_back_from_their_json() -> None:
    assert decode_query_offsets(json.loads(json.dumps(OFFSETS.encode()))) == OFFSETS


def test_offsets_of_partitions_are_written_as_kafkas_and_ours_under_the_empty_name() -> None:
    assert OFFSETS.encode() == {
        "orders": {"2": 5, "10": 7},
        "": {"query_id": "q", "topic_ids": {"orders": "id-1"}, "lost_offsets": 3},
    }


def test_offsets_say_how_the_tasks_of_their_batch_share_it() -> None:
    shared = replace(OFFSETS, sharing=Sharing(cores=4, min_partitions=None, max_records=9))
    encoded = shared.encode()
    assert encoded[""]["sharing"] == {"cores": 4, "min_partitions": None, "max_records": 9, "splits": True}
    assert decode_query_offsets(json.loads(json.dumps(encoded))) == shared


def test_offsets_of_a_first_batch_say_where_it_began() -> None:
    first = replace(OFFSETS, begun={ORDERS_2: 1, ORDERS_10: 0})
    encoded = first.encode()
    assert encoded[""]["begun"] == {"orders": {"2": 1, "10": 0}}
    assert decode_query_offsets(json.loads(json.dumps(encoded))) == first


def test_equal_offsets_have_equal_texts_whatever_their_order() -> None:
    other = QueryOffsets({ORDERS_2: 5, ORDERS_10: 7}, {"orders": "id-1"}, query_id="q", lost=3)
    assert json.dumps(other.encode()) == json.dumps(OFFSETS.encode())


def test_offsets_without_topic_ids_are_a_kafka_querys() -> None:
    with pytest.raises(KafkaOffsets, match=r'found those of a Kafka source: {"orders": {"0": 5}}'):
        decode_query_offsets({"orders": {"0": 5}})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "expected a JSON object of offsets, found 7"),
        ({"orders": 5, "": {"topic_ids": {}}}, "expected JSON like"),
        ({"orders": {"0": 5}, "": {"topic_ids": {"alerts": "x"}}}, "expected the ids of the topics orders"),
        ({"orders": {"0": 5}, "": []}, "expected the ids of the topics orders"),
        (
            {"orders": {"0": 5}, "": {"topic_ids": {"orders": "x"}, "sharing": {"cores": 4}}},
            "expected how tasks share a batch, cores, max_records, min_partitions, splits, found {'cores': 4}",
        ),
        ({"orders": {"0": 5}, "": {"topic_ids": {"orders": "x"}, "begun": {"orders": 1}}}, "expected JSON like"),
        ({"orders": {"-1": 5}, "": {"topic_ids": {"orders": "x"}}}, "a number from 0 on, found '-1'"),
        ({"orders": {"0": True}, "": {"topic_ids": {"orders": "x"}}}, "expected an offset for partition 0"),
    ],
)
def test_what_is_no_text_of_ours_is_never_taken_for_offsets(data: object, message: str) -> None:
    with pytest.raises(NotOffsets, match=message):
        decode_query_offsets(data)


def test_offsets_written_before_losses_were_counted_have_none() -> None:
    data = OFFSETS.encode()
    del data[""]["lost_offsets"]
    assert decode_query_offsets(data).lost == 0


def test_numbers_of_partitions_are_read_from_json() -> None:
    assert parse_partitions('{"orders":{"0":-2,"10":7}}', "an offset") == {ORDERS_0: -2, ORDERS_10: 7}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[]",
        '"earliest"',
        '{"orders":"first"}',
        '{"orders":{"0":"earliest"}}',
        '{"orders":[0]}',
        '{"orders":{"0":1.5}}',
        '{"orders":{"²":1}}',
    ],
)
def test_other_texts_are_no_numbers_of_partitions(text: str) -> None:
    with pytest.raises(NotOffsets):
        parse_partitions(text, "an offset")


@pytest.mark.parametrize(
    ("text", "name"),
    [('{"orders":{"0":1},"orders":{"1":2}}', "'orders'"), ('{"orders":{"0":1,"0":2}}', "'0'")],
)
def test_a_name_that_is_there_twice_is_refused(text: str, name: str) -> None:
    with pytest.raises(NotOffsets, match=f"{name} twice"):
        parse_partitions(text, "an offset")


def test_a_topic_that_is_assigned_twice_is_refused() -> None:
    with pytest.raises(NotOffsets, match="'orders' twice"):
        parse_assignment('{"orders":[0],"orders":[1]}')


def test_a_number_is_one_of_64_bits() -> None:
    assert parse_partitions(f'{{"orders":{{"0":{2**63 - 1}}}}}', "an offset") == {ORDERS_0: 2**63 - 1}
    with pytest.raises(NotOffsets, match="an offset up to 9223372036854775807 for partition 0 of orders, found 922"):
        parse_partitions(f'{{"orders":{{"0":{2**63}}}}}', "an offset")


def test_an_assignment_is_sorted_and_named_once() -> None:
    assert parse_assignment('{"orders":[10,0,10]}') == (ORDERS_0, ORDERS_10)


@pytest.mark.parametrize("text", ["orders", "{}", '{"orders":[]}', '{"orders":["0"]}', '{"orders":[true]}', '{"o":{}}'])
def test_other_texts_are_no_assignment(text: str) -> None:
    with pytest.raises(NotOffsets, match=r'expected JSON like {"orders":\[0,1\]}'):
        parse_assignment(text)
