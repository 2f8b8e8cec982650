"""`bus serve` with clocks at the seams of its produce path: `python -m benchmarks.timed_broker OUTPUT serve ...`.

The child writes its readings to OUTPUT when it ends; `TimedBroker` starts it and reads them.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.broker_process import BrokerProcess
from benchmarks.seams import Seams, now


class TimedBroker(BrokerProcess):
    """On a root in `folder`, which is there and empty."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "seams.json"
        self._command = [sys.executable, "-m", "benchmarks.timed_broker", str(self._output)]
        self._command += ["serve", "--root", str(folder / "root"), "--listen", "127.0.0.1:0", "--log-level", "WARNING"]
        self.start()

    def seams(self) -> dict[str, Any]:
        """`readings`, `wall` and `cpu`, by name; stops the broker."""
        self.stop()
        return dict(json.loads(self._output.read_text()))


class _TimedContext:
    """A call's context that reads the clock when an answer is handed over."""

    def __init__(self, context: Any, seams: Seams) -> None:
        self._context = context
        self._seams = seams

    async def write(self, answer: Any) -> None:
        await self._context.write(answer)
        self._seams.readings["answer written"].append(now())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def _serve(arguments: list[str], output: Path) -> None:
    from bus.cli.main import cli

    seams = Seams()
    _put_clocks(seams)
    started = time.process_time()
    try:
        cli(arguments, standalone_mode=False)
    finally:
        seams.cpu["process"] = time.process_time() - started
        output.write_text(json.dumps({"readings": seams.readings, "wall": seams.wall, "cpu": seams.cpu}))


def _put_clocks(seams: Seams) -> None:
    from bus.broker_api.produce import ProduceApi
    from bus.grpc_api.server.records import produce, produce_decoding
    from bus.runtime.partitions import partition_writer
    from bus.storage_delta import table
    from bus.storage_delta.log import writer
    from bus.storage_delta.stores.local import LocalStore

    stream = produce.ProduceHandler.stream

    async def timed_stream(handler: Any, requests: Any, context: Any) -> None:
        await stream(handler, requests, _TimedContext(context, seams))

    produce.ProduceHandler.stream = timed_stream  # type: ignore[assignment, method-assign]
    seams.around(ProduceApi, "submit", begins="submit begins")
    seams.around(produce_decoding, "decode_produce", ends="decoded")
    seams.around(partition_writer.PartitionWriter, "_append_call", begins="commit begins")
    seams.around(partition_writer.PartitionWriter, "_succeed", begins="commit ends")
    seams.around(table.DeltaPartitionTable, "append", begins="append begins")
    seams.around(table, "encode_data_file", ends="encoded")
    seams.around(LocalStore, "write_unique", ends="data file synced")
    seams.around(writer, "commit_version", ends="version synced")


if __name__ == "__main__":
    _serve(sys.argv[2:], Path(sys.argv[1]))
