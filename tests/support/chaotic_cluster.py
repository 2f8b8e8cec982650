"""Three brokers on one root, each behind a link of a proxy, and the faults that a seed chooses for them.

Clients and brokers alike reach a broker at the address of its link, which is the one that it advertises. A fault is of
one broker and has an end; up to two of them last at a time.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.support.broker_process import BrokerProcess
from tests.support.tcp_proxy import Link, TcpProxy

BROKERS = 3
_AT_ONCE = 2
_SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "group.initial.rebalance.delay.ms": 0,
    "leader.imbalance.check.interval.seconds": 2,  # leaders move back while faults go on
}


class ChaoticBroker:
    def __init__(self, proxy: TcpProxy, root: Path, broker_id: int) -> None:
        options = [f"--set={key}={value}" for key, value in _SETTINGS.items()]
        self.broker_id = broker_id
        self.process = BrokerProcess(root, "--broker-id", str(broker_id), *options, name=f"broker-{broker_id}")
        self.link: Link = proxy.link(self.process.address)
        self.process.advertise(self.link.address)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: str
    broker_id: int
    seconds: float
    pause_s: float  # before the next one

    def __str__(self) -> str:
        return f"{self.kind} of broker {self.broker_id} for {self.seconds:.1f} s"


def choose_faults(chance: random.Random, count: int) -> list[Fault]:
    """Choose faults by chance. A session is 2 s: halts, silences and faults of a disk are shorter or longer."""
    lengths: dict[str, Callable[[], float]] = {
        "kill": lambda: chance.uniform(0.0, 2.0),
        "halt": lambda: chance.choice((chance.uniform(0.3, 1.8), chance.uniform(2.5, 5.0))),
        "silence": lambda: chance.choice((chance.uniform(0.3, 1.8), chance.uniform(2.5, 5.0))),
        "cut": lambda: chance.uniform(0.2, 4.0),
        "delay": lambda: chance.uniform(1.0, 4.0),
        "break": lambda: 0.0,
        "unwritable": lambda: chance.uniform(0.5, 6.0),
    }
    kinds = tuple(os.environ.get("BUS_FAULT_KINDS", "kill kill halt halt silence cut delay break unwritable").split())
    faults = []
    for _ in range(count):
        kind = chance.choice(kinds)
        faults.append(Fault(kind, chance.randrange(BROKERS), lengths[kind](), chance.uniform(0.2, 3.0)))
    return faults


class ChaoticCluster:
    """`code`: the folder of another version's package, which all brokers are at first."""

    def __init__(self, folder: Path, *, code: Path | None = None) -> None:
        self.root = folder / "root"
        self._proxy = TcpProxy()
        self.brokers = [ChaoticBroker(self._proxy, self.root, broker_id) for broker_id in range(BROKERS)]
        for broker in self.brokers:
            broker.process.run_version(code)
        self.addresses = [broker.link.address for broker in self.brokers]
        self.told: list[str] = []  # what was done when
        self._began_s = time.monotonic()

    def tell(self, what: object) -> None:
        self.told.append(f"{time.monotonic() - self._began_s:.1f}: {what}")

    def stop(self) -> list[int]:
        """Stop the brokers in order; return the exit codes."""
        codes = [broker.process.terminate() for broker in self.brokers]
        self.tell("all brokers have ended")
        return codes

    def play(self, faults: list[Fault]) -> None:
        """Play the faults until the last one is over. Raises what went wrong with a broker that came back."""
        free = {broker.broker_id: threading.Lock() for broker in self.brokers}
        slots = threading.Semaphore(_AT_ONCE)

        def suffer(fault: Fault) -> None:
            try:
                with free[fault.broker_id]:
                    self.tell(fault)
                    self._suffer(fault)
                    self.tell(f"end of {fault}")
            finally:
                slots.release()

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            outcomes: list[Future[None]] = []
            for fault in faults:
                slots.acquire()
                outcomes.append(threads.submit(suffer, fault))
                time.sleep(fault.pause_s)
            for outcome in outcomes:
                outcome.result()

    def _suffer(self, fault: Fault) -> None:
        broker = self.brokers[fault.broker_id]
        link = broker.link
        match fault.kind:
            case "kill":
                broker.process.kill()
                time.sleep(fault.seconds)
                broker.process.start()
            case "halt":
                broker.signal(signal.SIGSTOP)
                time.sleep(fault.seconds)
                broker.signal(signal.SIGCONT)
            case "break":
                link.break_off()
            case "unwritable":  # no file of it may grow, as on a disk that is full for it alone
                unbounded = resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE)
                resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (0, unbounded[1]))
                time.sleep(fault.seconds)
                resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, unbounded)
            case _:
                begin: dict[str, Callable[[], None]] = {
                    "silence": link.silence,
                    "cut": link.cut,
                    "delay": lambda: link.delay(0.1),
                }
                begin[fault.kind]()
                time.sleep(fault.seconds)
                link.mend()

    def __enter__(self) -> ChaoticCluster:
        with ThreadPoolExecutor(BROKERS) as threads:
            list(threads.map(lambda broker: broker.process.start(), self.brokers))
        self.tell("all brokers serve")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self.brokers:
            broker.process.kill()
        self._proxy.__exit__(kind, error, trace)
