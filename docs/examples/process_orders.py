"""Bill each order once its turn comes: eight workers, the orders of one customer in order, bad ones put aside.

    python process_orders.py [ADDRESS [COUNT]]

Start it several times: the copies share the topic. Ctrl-C, or SIGTERM, ends a copy in order: what is under way is
finished and committed, and the others take over. With COUNT it ends by itself after so many orders.
"""

import json
import logging
import sys
import threading

from bus import Consumer, ConsumerRecord


def bill(order: ConsumerRecord) -> None:
    if order.value["amount"] <= 0:
        raise ValueError(f"expected an amount above 0, found {order.value['amount']}")
    print(f"{order.key.decode()} pays {order.value['amount']}", flush=True)


def main(address: str = "127.0.0.1:9094", count: str = "0") -> None:
    done, left, lock = threading.Event(), int(count), threading.Lock()

    def handle(order: ConsumerRecord) -> None:
        nonlocal left
        bill(order)
        with lock:
            left -= 1
            if left == 0:
                done.set()

    consumer = Consumer(address, group_id="billing", auto_offset_reset="earliest", value_deserializer=json.loads)
    consumer.subscribe(["orders"])
    summary = consumer.run(
        handle,
        stop=done,
        workers=8,
        order="key",
        on_error="dead_letter",
        retries=2,
        retry_backoff_ms=50,
    )
    print(f"{summary.handled} billed, {summary.dead_lettered} in orders.dlq", flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    main(*sys.argv[1:])
