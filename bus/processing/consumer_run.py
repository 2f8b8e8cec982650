"""`Consumer.run()`: the processing loop put together for a consumer that is connected to a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bus.client.config.consumer import ConsumerConfig
from bus.processing.consumer_port import GroupMember, ProcessedConsumer
from bus.processing.dead_letters import DeadLetters
from bus.processing.run import ProcessingRun
from bus.processing.settings import parse_settings
from bus.processing.summary import RunSummary


def run_consumer(
    consumer: ProcessedConsumer,
    member: GroupMember,
    addresses: Sequence[str],
    config: ConsumerConfig,
    handler: Callable[..., Any],
    stop: threading.Event | None,
    hurry: threading.Event | None,
    options: Mapping[str, Any],
) -> RunSummary:
    """`config`: the consumer's. Raises as `Consumer.run` does."""
    assert config.group_id is not None, "a member has a group"
    settings = parse_settings(options)
    dead_letters = DeadLetters(
        addresses,
        settings,
        group_id=config.group_id,
        is_deserialized=config.key_deserializer is not None or config.value_deserializer is not None,
    )
    try:
        return ProcessingRun(consumer, member, handler, settings, dead_letters.send, stop, hurry).run()
    finally:
        dead_letters.close()
