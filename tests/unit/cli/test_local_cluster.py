"""How brokers of this machine are started, and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.cli.cluster.cluster_processes import LaunchOptions, LocalCluster, _launch_options
from bus.storage_delta.root import open_storage


@pytest.mark.parametrize(
    ("protocol", "options"),
    [("PLAINTEXT", ("--listen", "127.0.0.1:9095")), ("SSL", ("--set", "listeners=SSL://127.0.0.1:9095"))],
)
def test_protocol_decides_how_a_broker_is_told_where_to_listen(protocol: str, options: tuple[str, str]) -> None:
    assert LaunchOptions(9095, None, (), protocol).listen_options == options


def test_broker_is_started_again_with_the_protocol_that_it_had(tmp_path: Path) -> None:
    open_storage(str(tmp_path), holder="a test").close()
    cluster = LocalCluster(tmp_path)
    folder = tmp_path / "cluster"
    folder.mkdir(exist_ok=True)
    (folder / "broker-0.json").write_text('{"port": 9094, "rack": null, "options": []}')
    (folder / "broker-1.json").write_text(
        '{"port": 9095, "rack": null, "options": ["--set", "a=b"], "protocol": "SSL"}'
    )

    def launch(broker_id: int, protocol: str | None) -> LaunchOptions:
        return _launch_options(cluster, broker_id, None, (), protocol, ())

    assert launch(0, None).protocol == "PLAINTEXT"
    assert launch(1, None) == LaunchOptions(9095, None, ("--set", "a=b"), "SSL")
    assert launch(0, "SASL_SSL").protocol == "SASL_SSL"
