"""A signal handler runs in the main thread, between any two steps of what that does."""

from __future__ import annotations

from bus import Consumer


def test_wakeup_in_a_handler_that_interrupts_the_holder_of_the_lock_returns_and_takes_effect_afterwards() -> None:
    with Consumer("127.0.0.1:1", group_id="g") as consumer:
        reader, fetcher = consumer._reader, consumer._fetcher
        with fetcher.lock:  # where the handler interrupts
            consumer.wakeup()
            assert not reader._is_awoken, "what the lock guards is not changed under the feet of its holder"
            assert fetcher.changed.wait_for(lambda: reader._is_awoken, 10)
