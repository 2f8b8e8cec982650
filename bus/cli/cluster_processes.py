"""`bus cluster up`, `down`, `restart`, `kill`, `pause` and `resume`: brokers as processes of this machine."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from bus.addresses import Address
from bus.cli.failures import Failure, warn_of_secrets
from bus.cli.groups import BusCommand
from bus.cli.local_cluster import HOST, LaunchOptions, LocalCluster, wait_until
from bus.cli.options import open_admin, root_option, set_option
from bus.cli.output import echo
from bus.config.listeners import PROTOCOLS
from bus.errors import BusError, RootNotUsable, count_of
from bus.extras import check_extra
from bus.model import PLAINTEXT

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
    help=f"Of broker 0, and one more for each next; 0: free ones.  [default: as before, else {_PORT}]",
)
@click.option("--rack", "racks", metavar="RACK[,RACK...]", help="Racks of the brokers, in turns.  [default: as before]")
@click.option(
    "--security-protocol",
    "protocol",
    type=click.Choice(PROTOCOLS, case_sensitive=False),
    show_default=False,
    help="Of the listener of each broker; its settings come by --config and --set.  "
    f"[default: as before, else {PLAINTEXT}]",
)
@click.option("--config", "config_file", type=click.Path(exists=True, dir_okay=False), help="As of bus serve.")
@set_option("As of bus serve; repeatable.")
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
    are in the folder `cluster` of the root. The brokers listen on 127.0.0.1.
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
    for broker_ids in (first, absent[len(first) :]):
        for starting in [cluster.start(broker_id, launches[broker_id]) for broker_id in broker_ids]:
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
    from bus.config.loading import literal_secrets

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
    """What was not said now is as it was when the broker was started before, or the one with the lowest id."""
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
    """Until a broker that is ready leads again what it is to lead."""

    def is_serving() -> bool:
        topics = its_own.describe_topics().values()
        return not any(one.error for topic in topics for one in topic.partitions if one.leader_id == broker_id)

    with (
        open_admin(",".join(cluster.addresses())) as admin,
        open_admin(cluster.find(broker_id).address) as its_own,
    ):
        admin.elect_leaders()
        wait_until(is_serving, timeout_s, f"broker {broker_id} does not serve all that it leads after {timeout_s:g} s")
