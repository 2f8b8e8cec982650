"""`bus cluster up`, `down`, `restart`, `kill`, `pause` and `resume`: brokers as processes of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from bus.addresses import Address
from bus.cli.commands import BusCommand
from bus.cli.failures import Failure, warn_of_secrets
from bus.cli.options import open_admin, root_option, set_option
from bus.cli.output import echo
from bus.errors import BusError, RootNotUsable, count_of
from bus.extras import check_extra
from bus.model import PLAINTEXT, RunningBroker
from bus.platform.signals import signals_as_interrupts
from bus.settings.listeners import PROTOCOLS

# The brokers of a cluster as processes of this machine: found, started, stopped, sent signals.
#
# A broker holds a lock of its own in the root, `cluster/broker-N.lock`, for as long as its process lives. Guards one
# promise: a signal goes to no process but one that is named in such a lock and has its file open. Beside the lock are
# the broker's log and the options that it was started with.

HOST = "127.0.0.1"
_POLL_S = 0.05
_LOG_LINES_SHOWN = 15
_OF_A_BROKER = re.compile(r"broker-([0-9]+)\.(?:lock|json)")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How a broker is started, and started again."""

    port: int
    rack: str | None
    options: tuple[str, ...]  # of `bus serve`, beside those that follow from the rest
    protocol: str = PLAINTEXT  # of its one listener

    @property
    def listen_options(self) -> tuple[str, str]:
        address = f"{HOST}:{self.port}"
        return (
            ("--listen", address) if self.protocol == PLAINTEXT else ("--set", f"listeners={self.protocol}://{address}")
        )


class LocalCluster:
    """Brokers on one root. `root` is a bus root already."""

    def __init__(self, root: Path) -> None:
        from bus.storage_delta.stores.local import LocalStore

        self.root = root
        self._folder = root / "cluster"
        self._store = LocalStore(str(root))

    def known(self) -> list[int]:
        """The ids of all brokers that have run on this root, or were to."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return sorted({int(found[1]) for name in names if (found := _OF_A_BROKER.fullmatch(name))})

    def running(self) -> list[int]:
        """On this machine or, if the root is shared, on another one."""
        return [broker_id for broker_id in self.known() if self._holder(broker_id) is not None]

    def find(self, broker_id: int) -> RunningBroker:
        """Raises `Failure`: it is not known, does not run, or runs where it cannot be reached by a signal."""
        holder = self._holder(broker_id)
        if holder is None:
            known = self.known()
            if broker_id in known:
                raise Failure(f"broker {broker_id} does not run; start it with: bus cluster up")
            there = ", ".join(map(str, known)) or "none"
            raise Failure(f"expected a broker of {self.root}, {there}, found {broker_id}")
        found = RunningBroker.parse(holder)
        if found is None or found.broker_id != broker_id:
            raise Failure(f"expected the lock of broker {broker_id} to name its process, found {holder!r}")
        if not _has_open(found.pid, self._lock_path(broker_id)):
            raise Failure(
                f"broker {broker_id} runs, but not on this machine or in another container: its lock says {holder!r}, "
                f"and no process {found.pid} here has that file open"
            )
        return found

    def send(self, broker_id: int, *numbers: signal.Signals) -> RunningBroker:
        """Raises `Failure` as `find` does."""
        broker = self.find(broker_id)
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(broker.pid, number)
        return broker

    def is_paused(self, broker_id: int) -> bool:
        """Return True if a signal has halted it; False where the system does not tell. Raises `Failure` as `find`
        does."""
        try:
            state = Path(f"/proc/{self.find(broker_id).pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return False
        return state == "T"

    def wait_until_gone(self, broker_id: int, timeout_s: float) -> None:
        """Raises `Failure` if the broker runs on."""
        wait_until(
            lambda: self._holder(broker_id) is None,
            timeout_s,
            f"broker {broker_id} has not stopped within {timeout_s:g} s; see {self.log_path(broker_id)}",
        )

    def stop(self, broker_id: int, timeout_s: float) -> RunningBroker:
        """Stop it in order; one that is paused goes on, so that it can."""
        broker = self.send(broker_id, signal.SIGTERM, signal.SIGCONT)
        self.wait_until_gone(broker_id, timeout_s)
        return broker

    def addresses(self) -> list[str]:
        holders = (self._holder(broker_id) for broker_id in self.known())
        found = (RunningBroker.parse(holder) for holder in holders if holder is not None)
        return [broker.address for broker in found if broker is not None]

    # ------------------------------------------------------------ starting

    def log_path(self, broker_id: int) -> Path:
        return self._folder / f"broker-{broker_id}.log"

    def launch_options(self, broker_id: int) -> LaunchOptions | None:
        """Read the options of its last start by this program; None if there was none."""
        try:
            saved = json.loads(self._options_path(broker_id).read_text("utf-8"))
            protocol = str(saved.get("protocol", PLAINTEXT))  # there is none of an earlier version
            return LaunchOptions(int(saved["port"]), saved["rack"], tuple(map(str, saved["options"])), protocol)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failure(f"expected options in {self._options_path(broker_id)}, found: {error}") from error

    def forget_launch_options(self, broker_id: int) -> None:
        """The broker is gone for good, and is not to be started again with the others."""
        self._options_path(broker_id).unlink(missing_ok=True)

    def start(self, broker_id: int, launch: LaunchOptions) -> StartingBroker:
        self._folder.mkdir(0o750, exist_ok=True)
        options_path = self._options_path(broker_id)
        options_path.touch(0o600)  # a setting may be a secret
        options_path.write_text(json.dumps(asdict(launch)) + "\n", "utf-8")
        rack = [] if launch.rack is None else ["--rack", launch.rack]
        path = self.log_path(broker_id)
        with path.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bus", "serve", "--root", str(self.root), "--broker-id", str(broker_id)),
                    *(*launch.listen_options, *rack, *launch.options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at this terminal is not for the broker
            )
        return StartingBroker(broker_id, process, path, begin)

    # ------------------------------------------------------------ files

    def _lock_key(self, broker_id: int) -> str:
        return f"cluster/broker-{broker_id}.lock"

    def _lock_path(self, broker_id: int) -> Path:
        return self.root / self._lock_key(broker_id)

    def _options_path(self, broker_id: int) -> Path:
        return self._folder / f"broker-{broker_id}.json"

    def _holder(self, broker_id: int) -> str | None:
        """Return what the process that runs as this broker says about itself."""
        return self._store.lock_holder(self._lock_key(broker_id))


class StartingBroker:
    """A process that was started just now, and is a child of this one. `begin`: where its part of the log begins."""

    def __init__(self, broker_id: int, process: subprocess.Popen[bytes], log_path: Path, begin: int) -> None:
        self.broker_id = broker_id
        self._process = process
        self._log_path = log_path
        self._begin = begin
        self._is_asked_to_end = False

    def ask_to_end(self) -> None:
        """Ask the broker to end in order. Asks once, since a second signal would end it at once."""
        if not self._is_asked_to_end and self._process.poll() is None:
            self._process.terminate()
        self._is_asked_to_end = True

    def wait_until_ended(self, timeout_s: float) -> None:
        """Raises `Failure` if the broker runs on."""
        wait_until(
            lambda: self._process.poll() is not None,
            timeout_s,
            f"broker {self.broker_id} has not stopped within {timeout_s:g} s; see {self._log_path}",
        )

    def wait_ready(self, timeout_s: float) -> None:
        """Raises `Failure`, with the end of its log if it has ended."""
        wait_until(
            self._is_ready,
            timeout_s,
            f"broker {self.broker_id} is not ready after {timeout_s:g} s and still starting; see {self._log_path}",
        )

    def _is_ready(self) -> bool:
        status = self._process.poll()
        lines = self._lines()
        if any(line.startswith("ready: ") for line in lines):
            return True
        if status is not None:
            end = "".join(f"\n  {line}" for line in lines[-_LOG_LINES_SHOWN:])
            raise Failure(
                f"broker {self.broker_id} ended with status {status} before it was ready; "
                f"the end of {self._log_path}:{end}"
            )
        return False

    def _lines(self) -> list[str]:
        with self._log_path.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode("utf-8", "replace").splitlines()


def wait_until(is_done: Callable[[], bool], timeout_s: float, failure: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline_s:
            raise Failure(failure)
        time.sleep(_POLL_S)


def _has_open(pid: int, path: Path) -> bool:
    """Return True if the process has this file open, and where the system does not tell."""
    if not os.path.isdir("/proc/self/fd"):
        return True
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        raise Failure(f"process {pid} belongs to another user") from None
    except OSError:
        return False
    wanted = path.stat()
    for name in names:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False


_PORT = 9094
_BROKERS = 3
_BROKERS_MAX = 100


def timeout_option(text: str = "How long to wait for each broker.") -> Callable[[Any], Any]:
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0, min_open=True),
        default=60.0,
        metavar="SECONDS",
        help=text,
    )


def _cluster_root_option() -> Callable[[Any], Any]:
    return root_option("Folder of the cluster.")


def broker_argument(*, is_required: bool = True) -> Callable[[Any], Any]:
    return click.argument(
        "broker_ids",
        metavar="BROKER..." if is_required else "[BROKER...]",
        nargs=-1,
        type=click.IntRange(min=0),
        required=is_required,
    )


@click.command(
    cls=BusCommand,
    examples="""
    bus cluster up --brokers 3
    bus cluster up --brokers 3 --root /srv/bus --port 9094 --rack a,b,c
    bus cluster up --brokers 3 --security-protocol SSL --config tls.toml
    bus cluster up --brokers 2 --set offsets.topic.num.partitions=4
    bus cluster up
    """,
)
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, _BROKERS_MAX),
    show_default=False,
    help=f"How many, with the ids 0, 1, ...  [default: those that were started before, else {_BROKERS}]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    show_default=False,
    help=f"Port of broker 0, and one more for each next; 0: free ones.  [default: as before, else {_PORT}]",
)
@click.option("--rack", "racks", metavar="RACK[,RACK...]", help="Racks of the brokers, in turns.  [default: as before]")
@click.option(
    "--security-protocol",
    "protocol",
    type=click.Choice(PROTOCOLS, case_sensitive=False),
    show_default=False,
    help="Protocol of each broker's listener; its settings come by --config and --set.  "
    f"[default: as before, else {PLAINTEXT}]",
)
@click.option(
    "--config", "config_file", type=click.Path(exists=True, dir_okay=False), help="TOML file, as of bus serve."
)
@set_option("Any key of that file, as of bus serve; repeatable.")
@timeout_option()
@_cluster_root_option()
def up(
    count: int | None,
    port: int | None,
    racks: str | None,
    protocol: str | None,
    config_file: str | None,
    settings: tuple[str, ...],
    timeout_s: float,
    root: str,
) -> None:
    """Start brokers on this machine, and wait until each is ready. They go on when the command has ended.

    A broker that runs already is left as it is, so the command also starts again what was stopped or killed. Their logs
    are in the folder `cluster` of the root. The brokers listen on 127.0.0.1. A signal that comes before all are ready
    stops those that this command has started.
    """
    check_extra("broker")
    cluster = _make_cluster(root)
    launched = [broker_id for broker_id in cluster.known() if cluster.launch_options(broker_id) is not None]
    wanted = range(count) if count is not None else launched or range(_BROKERS)
    running = cluster.running()
    absent = [broker_id for broker_id in wanted if broker_id not in running]
    options = _serve_options(config_file, settings)
    launches = {
        broker_id: _launch_options(cluster, broker_id, port, racks.split(",") if racks else [], protocol, options)
        for broker_id in absent
    }
    if port == 0:
        launches = _with_free_ports(launches)
    _check_ports(launches)
    for broker_id in wanted:
        if broker_id in running:
            hint = f", but is paused; let it go on with: bus cluster resume {broker_id}"
            echo(f"broker {broker_id} runs already{hint if cluster.is_paused(broker_id) else ''}", err=True)
    # The first broker of a cluster that is down opens the root for the others.
    first = absent[: 0 if running else 1]
    with _ended_if_interrupted(timeout_s) as start:
        for broker_ids in (first, absent[len(first) :]):
            for starting in [start(cluster, broker_id, launches[broker_id]) for broker_id in broker_ids]:
                starting.wait_ready(timeout_s)
                _tell_ready(cluster, starting.broker_id)
    addresses = cluster.addresses()
    echo(f"{count_of(len(addresses), 'broker')} on {cluster.root}; to use this cluster:", err=True)
    echo(f"export BUS_ADDRESS={','.join(addresses)}")
    echo(f"export BUS_ROOT={cluster.root}")


@click.command(
    cls=BusCommand,
    examples="""
    bus cluster down
    bus cluster down 2 --root /srv/bus
    """,
)
@broker_argument(is_required=False)
@timeout_option()
@_cluster_root_option()
def down(broker_ids: tuple[int, ...], timeout_s: float, root: str) -> None:
    """Stop brokers of this machine, one after another, or all; the controller is the last one.

    Each hands over what it leads, and answers what is in flight, before it ends.
    """
    cluster = _open_cluster(root)
    wanted = _controller_last(cluster, broker_ids or cluster.running())
    if not wanted:
        echo(f"no broker runs on {cluster.root}", err=True)
    for broker_id in wanted:
        stopped = cluster.stop(broker_id, timeout_s)
        echo(f"broker {broker_id}: stopped (pid {stopped.pid})", err=True)


@click.command(
    cls=BusCommand,
    examples="""
    bus cluster kill 1
    bus cluster kill 1 2 --root /srv/bus
    """,
)
@broker_argument()
@_cluster_root_option()
def kill(broker_ids: tuple[int, ...], root: str) -> None:
    """End brokers of this machine at once, by SIGKILL: to see what a failure does. Nothing acknowledged is lost."""
    cluster = _open_cluster(root)
    for broker_id in broker_ids:
        killed = cluster.send(broker_id, signal.SIGKILL)
        cluster.wait_until_gone(broker_id, timeout_s=60)
        how = "with: bus cluster up" if cluster.launch_options(broker_id) is not None else "as it was started before"
        echo(f"broker {broker_id}: killed (pid {killed.pid}); start it again {how}", err=True)


@click.command(
    cls=BusCommand,
    examples="""
    bus cluster pause 1
    """,
)
@broker_argument()
@_cluster_root_option()
def pause(broker_ids: tuple[int, ...], root: str) -> None:
    """Halt brokers of this machine, by SIGSTOP: as a machine that hangs, they hold all they have and answer nothing."""
    cluster = _open_cluster(root)
    for broker_id in broker_ids:
        paused = cluster.send(broker_id, signal.SIGSTOP)
        echo(
            f"broker {broker_id}: paused (pid {paused.pid}); let it go on with: bus cluster resume {broker_id}",
            err=True,
        )


@click.command(
    cls=BusCommand,
    examples="""
    bus cluster resume 1
    """,
)
@broker_argument()
@_cluster_root_option()
def resume(broker_ids: tuple[int, ...], root: str) -> None:
    """Let brokers of this machine go on that were paused, by SIGCONT."""
    cluster = _open_cluster(root)
    for broker_id in broker_ids:
        resumed = cluster.send(broker_id, signal.SIGCONT)
        echo(f"broker {broker_id}: goes on (pid {resumed.pid})", err=True)


@click.command(
    cls=BusCommand,
    examples="""
    bus cluster restart
    bus cluster restart 1 --root /srv/bus
    """,
)
@broker_argument(is_required=False)
@timeout_option()
@_cluster_root_option()
def restart(broker_ids: tuple[int, ...], timeout_s: float, root: str) -> None:
    """Stop and start brokers of this machine, one after another, or all; the controller is the last one.

    The next one is stopped when the one before serves clients and leads again what it is to lead. A broker that
    `bus cluster up` has not started is refused.
    """
    cluster = _open_cluster(root)
    wanted = _controller_last(cluster, broker_ids or cluster.running())
    if not wanted:
        raise Failure(f"no broker runs on {cluster.root}; start some with: bus cluster up")
    launches = {}
    for broker_id in wanted:
        cluster.find(broker_id)
        launch = cluster.launch_options(broker_id)
        if launch is None:
            raise Failure(f"broker {broker_id} was not started by bus cluster up: its options are not known")
        launches[broker_id] = launch
    for broker_id, launch in launches.items():
        cluster.stop(broker_id, timeout_s)
        cluster.start(broker_id, launch).wait_ready(timeout_s)
        _wait_until_serving(cluster, broker_id, timeout_s)
        _tell_ready(cluster, broker_id)


# ------------------------------------------------------------------ what commands share


@contextmanager
def _ended_if_interrupted(
    timeout_s: float,
) -> Iterator[Callable[[LocalCluster, int, LaunchOptions], StartingBroker]]:
    """Yield `LocalCluster.start`. Where a signal ends the block, what it has started is ended, the last one first."""
    started: list[StartingBroker] = []
    with signals_as_interrupts() as interrupts:

        def start(cluster: LocalCluster, broker_id: int, launch: LaunchOptions) -> StartingBroker:
            with interrupts.held():  # no process without an entry
                started.append(cluster.start(broker_id, launch))
            return started[-1]

        try:
            yield start
        except KeyboardInterrupt:
            try:
                for one in reversed(started):
                    one.ask_to_end()
                    one.wait_until_ended(timeout_s)
                    echo(f"broker {one.broker_id}: stopped before all were ready", err=True)
            finally:  # where another signal ends the wait
                for one in started:
                    one.ask_to_end()
            raise


def _open_cluster(root: str) -> LocalCluster:
    from bus.tables.topics import check_root

    return LocalCluster(check_root(root))


def _make_cluster(root: str) -> LocalCluster:
    """A folder that is absent or empty is made a root first: logs of brokers would make it a folder of something."""
    from bus.storage_delta.root import open_storage
    from bus.tables.topics import check_root

    try:
        check_root(root)
    except RootNotUsable:
        open_storage(root, holder=f"bus cluster up, pid {os.getpid()}").close()
    return LocalCluster(check_root(root))


def _serve_options(config_file: str | None, settings: Sequence[str]) -> tuple[str, ...]:
    from bus.settings.loading import literal_secrets

    given = [(name.strip(), value) for name, _, value in (text.partition("=") for text in settings)]
    warn_of_secrets(literal_secrets(given), "the file of --config, or a variable such as ${file:/PATH:KEY}")
    config = () if config_file is None else ("--config", os.path.abspath(config_file))
    return (*config, *(part for setting in settings for part in ("--set", setting)))


def _launch_options(
    cluster: LocalCluster,
    broker_id: int,
    port: int | None,
    racks: Sequence[str],
    protocol: str | None,
    options: tuple[str, ...],
) -> LaunchOptions:
    """Take what was not said now as it was when the broker was started before, or the one with the lowest id."""
    before = cluster.launch_options(broker_id)
    if port is None and before is None:
        known = ((one, cluster.launch_options(one)) for one in cluster.known())
        port = next((launch.port - one for one, launch in known if launch is not None), _PORT)
    return LaunchOptions(
        before.port if port is None and before is not None else (port or 0) + broker_id,
        racks[broker_id % len(racks)] if racks else before.rack if before is not None else None,
        options if options or before is None else before.options,
        protocol or (before.protocol if before is not None else PLAINTEXT),
    )


def _with_free_ports(launches: dict[int, LaunchOptions]) -> dict[int, LaunchOptions]:
    probes = [socket.socket() for _ in launches]
    try:
        for probe in probes:
            probe.bind((HOST, 0))
        return {
            broker_id: replace(launch, port=probe.getsockname()[1])
            for probe, (broker_id, launch) in zip(probes, launches.items(), strict=True)
        }
    finally:
        for probe in probes:
            probe.close()


def _check_ports(launches: dict[int, LaunchOptions]) -> None:
    """Raises `Failure` before anything is started."""
    for broker_id, launch in launches.items():
        if not 0 < launch.port <= 65535:
            raise Failure(f"expected a port from 1 to 65535 for broker {broker_id}, found {launch.port}")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, launch.port))
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise Failure(
                    f"broker {broker_id} cannot listen on {Address(HOST, launch.port)}: {reason}; "
                    "choose other ports with --port"
                ) from None


def _tell_ready(cluster: LocalCluster, broker_id: int) -> None:
    broker = cluster.find(broker_id)
    echo(f"broker {broker_id}: ready at {broker.address} (pid {broker.pid})", err=True)


def _controller_last(cluster: LocalCluster, broker_ids: Iterable[int]) -> list[int]:
    """If it were stopped first, so would be its successors."""
    wanted = list(dict.fromkeys(broker_ids))
    if len(wanted) < 2:
        return wanted
    with suppress(BusError), open_admin(",".join(cluster.addresses()), default_api_timeout_ms=5_000) as admin:
        controller_id = admin.describe_cluster().controller_id
        wanted.sort(key=lambda broker_id: broker_id == controller_id)
    return wanted


def _wait_until_serving(cluster: LocalCluster, broker_id: int, timeout_s: float) -> None:
    """Wait until a broker that is ready leads again what it is to lead."""

    def is_serving() -> bool:
        topics = its_own.describe_topics().values()
        return not any(one.error for topic in topics for one in topic.partitions if one.leader_id == broker_id)

    with (
        open_admin(",".join(cluster.addresses())) as admin,
        open_admin(cluster.find(broker_id).address) as its_own,
    ):
        admin.elect_leaders()
        wait_until(is_serving, timeout_s, f"broker {broker_id} does not serve all that it leads after {timeout_s:g} s")
