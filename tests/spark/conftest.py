"""One Spark session for all tests of this folder: starting one takes seconds. And a broker for a module that asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import bus.spark
from bus import Admin
from bus.broker import Broker
from bus.settings.broker import BrokerConfig
from tests.support.broker_thread import running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Else Spark gives up on its own other half after 15 s, which a busy machine may take.
_SOCKET_TIMEOUT_S = "120"
os.environ.setdefault("SPARK_AUTH_SOCKET_TIMEOUT", _SOCKET_TIMEOUT_S)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # The first query of a session compiles and loads for seconds, on a busy machine for many.
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    spark = bus.spark.session(
        "bus-tests",
        master="local[2]",
        conf={
            # Java compiles quickly, and one thread collects garbage; all tests together compile more than the 48 MB
            # that there would be room for.
            "spark.driver.extraJavaOptions": (
                "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
            ),
            # For a few rows it costs more to write a program for each query, and to compile it, than to go through the
            # plan. The programs that tests start as a user does (the tour, the demo, the notebook) compile.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.python.authenticate.socketTimeout": f"{_SOCKET_TIMEOUT_S}s",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.log.level": "ERROR",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = BrokerConfig(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)
    with running_broker(tmp_path_factory.mktemp("broker") / "root", config=config) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(f"127.0.0.1:{broker.port}") as admin:
        yield admin
