"""That Spark's workers are what workers.py takes them for."""

from __future__ import annotations

import gc

import pyarrow as pa
from pyspark.sql import SparkSession

from bus.spark.workers import settled_worker


def _is_frozen(thing: object) -> bool:
    return not any(each is thing for each in gc.get_objects())


def _look(_: int) -> tuple[str, str, bool]:
    made_before: list[object] = []
    with settled_worker(keeps_memory=False):
        before = pa.default_memory_pool().backend_name
    with settled_worker(keeps_memory=True):
        after = pa.default_memory_pool().backend_name
    return before, after, _is_frozen(made_before)


def test_a_task_settles_its_worker_and_a_driver_stays_as_it_is(spark: SparkSession) -> None:
    pool, made_before = pa.default_memory_pool().backend_name, list[object]()
    found = spark.sparkContext.parallelize([0], 1).map(_look).collect()
    ((before, after, is_frozen),) = found
    assert after == ("jemalloc" if "jemalloc" in pa.supported_memory_backends() else before)
    assert is_frozen
    with settled_worker(keeps_memory=True):
        pass
    assert pa.default_memory_pool().backend_name == pool
    assert not _is_frozen(made_before)
