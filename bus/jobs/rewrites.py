"""What the jobs that rewrite the files of a log have in common."""

from __future__ import annotations

import argparse

from bus.cluster_metadata.configs import resolve_topic_config
from bus.config.topic import TopicConfig
from bus.spark import jobs
from bus.spark.file_writer import CODECS
from bus.tables.topics import TopicTables


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target-bytes",
        type=jobs.positive_number,
        metavar="N",
        help="size of the new files (default: segment.bytes of the topic)",
    )
    parser.add_argument(
        "--compression", default="zstd", choices=sorted(CODECS), help="codec of the new files (default: zstd)"
    )


def topic_config(tables: TopicTables, name: str) -> TopicConfig:
    topic = tables.cluster().topics.get(name)
    return resolve_topic_config(topic.configs if topic else {})
