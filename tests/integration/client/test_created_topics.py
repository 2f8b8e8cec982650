"""A topic that a client has created by naming it is told, with the name that was probably meant."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bus import Admin, Consumer, NewTopic, Producer
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker


def test_misspelt_topic_that_is_created_says_so_with_the_nearest_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "bus.client")
    with running_broker(tmp_path / "root", config=BrokerConfig(offsets_topic_num_partitions=1)) as broker:
        address = f"127.0.0.1:{broker.port}"
        with Admin(address) as admin, Producer(address) as producer:
            admin.create_topics([NewTopic("orders", 1)])
            producer.send("orders", b"1").result(50)
            assert caplog.messages == [], "nothing was created by the way"
            producer.send("ordrs", b"1").result(50)
            producer.send("ordrs", b"2").result(50)
            producer.send("something-else", b"1").result(50)
        with Consumer(address, group_id="g") as consumer:
            consumer.subscribe(["odrers"])
            while not consumer.assignment():
                consumer.poll(100)
    created = [message for message in caplog.messages if "was created" in message]
    assert [message.partition(" did")[0] for message in created] == [
        "topic 'ordrs'",
        "topic 'something-else'",
        "topic 'odrers'",
    ]
    assert created[0].endswith("; did you mean 'orders'?")
    assert "did you mean" not in created[1]
    assert created[2].endswith("; did you mean 'orders'?")
