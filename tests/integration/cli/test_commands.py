"""The commands against a real broker in a process of its own."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from bus.cli.main import cli
from bus.cli.records.perf import CONSUME_HEADER
from tests.support.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli") / "root") as process:
        yield process


@pytest.fixture
def topic(broker: BrokerProcess, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions, named like the test."""
    name = re.sub(r"[^a-z0-9]", "-", request.node.name.removeprefix("test_"))[:60]
    done(broker, "topics", "create", name, "--partitions", "2")
    return str(name)


def environment(broker: BrokerProcess) -> dict[str, str]:
    return {"BUS_ADDRESS": broker.address, "BUS_ROOT": str(broker.root), "PYTHONUNBUFFERED": "1"}


def run(broker: BrokerProcess, *arguments: str, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=text, env=environment(broker), prog_name="bus")


def done(broker: BrokerProcess, *arguments: str, text: str | bytes | None = None) -> Result:
    result = run(broker, *arguments, text=text)
    assert result.exit_code == 0, result.output
    return result


def program(broker: BrokerProcess, *arguments: str) -> subprocess.Popen[bytes]:
    """The command as a process, for what has to do with pipes and signals."""
    return subprocess.Popen(
        [sys.executable, "-m", "bus", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment(broker)},
    )


# ------------------------------------------------------------------ topics


def test_topic_lives_from_create_to_delete(broker: BrokerProcess) -> None:
    assert "could be created" in done(broker, "topics", "create", "life", "-p", "2", "--validate-only").output
    assert "created topic life" in done(broker, "topics", "create", "life", "-p", "2", "-c", "retention.ms=5").output
    assert "topic life exists" in done(broker, "topics", "create", "life", "--if-not-exists").output
    again = run(broker, "topics", "create", "life")
    assert (again.exit_code, again.stderr.splitlines()[0][:28]) == (1, "error: TOPIC_ALREADY_EXISTS:")

    done(
        broker,
        "topics",
        "alter",
        "life",
        "--partitions",
        "3",
        "-c",
        "commit.burst=7",
        "--delete-config",
        "retention.ms",
    )
    (described,) = json.loads(done(broker, "topics", "describe", "life").stdout)
    assert described["configs"] == {"commit.burst": "7"}
    assert [one["partition"] for one in described["partitions"]] == [0, 1, 2]
    assert re.fullmatch(r"[0-9a-f-]{36}", described["topic_id"])

    assert "deleted topic life" in done(broker, "topics", "delete", "life", "--yes").output
    assert "does not exist" in done(broker, "topics", "delete", "life", "--yes", "--if-exists").output
    assert run(broker, "topics", "describe", "life").stderr.startswith("error: UNKNOWN_TOPIC_OR_PARTITION:")


def test_describe_prints_kafkas_fields(broker: BrokerProcess, topic: str) -> None:
    done(broker, "produce", topic, "--partition", "1", text="a\nb\n")
    printed = done(broker, "topics", "describe", topic, "--format", "table").stdout.splitlines()
    head = dict(field.split(": ") for field in printed[0].rstrip().removesuffix("Configs:").split("\t") if field)
    assert head["Topic"] == topic
    assert head["PartitionCount"] == "2"
    assert head["ReplicationFactor"] == "1"
    assert printed[1].split() == [
        *("Partition", "Leader", "LeaderEpoch", "Replicas", "Isr", "EarliestOffset", "LatestOffset"),
    ]
    assert [line.split() for line in printed[2:]] == [
        ["0", "0", "0", "0", "0", "0", "0"],
        ["1", "0", "0", "0", "0", "0", "2"],
    ]
    rows = list(csv.DictReader(done(broker, "topics", "describe", topic, "--format", "csv").stdout.splitlines()))
    assert [row["latest_offset"] for row in rows] == ["0", "2"]


def test_every_config_is_described_with_its_meaning(broker: BrokerProcess, topic: str) -> None:
    done(broker, "topics", "alter", topic, "-c", "retention.ms=99")
    entries = {
        entry["name"]: entry for entry in json.loads(done(broker, "topics", "describe", topic, "--configs").stdout)
    }
    assert entries["retention.ms"]["value"] == "99"
    assert not entries["retention.ms"]["is_default"]
    assert all(entry["documentation"] and entry["type"] for entry in entries.values())
    assert "retention.ms=99" in done(broker, "topics", "describe", topic, "--configs", "--format", "table").stdout


def test_list_is_json_in_a_pipe_and_hides_internal_topics(broker: BrokerProcess, topic: str) -> None:
    listed = {entry["topic"]: entry["partitions"] for entry in json.loads(done(broker, "topics", "list").stdout)}
    assert listed[topic] == 2
    assert not any(name.startswith("__") for name in listed)


# ------------------------------------------------------------------ produce and consume


def test_lines_come_back_in_order_with_their_summary(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(5_000)]
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines))  # the last one has no end
    produced = done(broker, "produce", topic, str(file), "--partition", "0")
    assert "5,000 records" in produced.stderr
    assert re.search(rf"{topic}-0: last offset 4999, version \d+", produced.stderr)
    assert done(broker, "consume", topic, "--exit").stdout.splitlines() == lines


def test_keyed_lines_go_where_their_key_says_and_a_line_without_one_is_named(broker: BrokerProcess, topic: str) -> None:
    done(broker, "produce", topic, "-K", ":", text="a:1\nb:2\na:3\n")
    found = done(broker, "consume", topic, "-e", "-f", "%p %k %s\\n").stdout.splitlines()
    assert sorted(line[2:] for line in found) == ["a 1", "a 3", "b 2"]
    assert len({line[0] for line in found if " a " in line}) == 1
    failed = run(broker, "produce", topic, "-K", ":", text="c:4\nno key\n")
    assert failed.exit_code == 1
    assert "standard input: line 2: expected a key, then ':'" in failed.stderr
    assert "c 4" in done(broker, "consume", topic, "-e", "-f", "%k %s\\n").stdout


def test_json_records_keep_key_headers_partition_timestamp_and_bytes(broker: BrokerProcess, topic: str) -> None:
    lines = [
        '{"key":"k","value":{"a":1},"headers":{"h":"1"},"partition":1,"timestamp":"2013-01-01T12:00Z"}',
        '{"key_base64":"/w==","value":null,"partition":1,"timestamp":1357041600001}',
        "",
        '{"value":"now","partition":1}',
    ]
    done(broker, "produce", topic, "--json", text="\n".join(lines))
    found = [json.loads(line) for line in done(broker, "consume", topic, "-e", "-f", "json").stdout.splitlines()]
    assert [(one["partition"], one["offset"], one["value"]) for one in found] == [
        (1, 0, '{"a":1}'),
        (1, 1, None),
        (1, 2, "now"),
    ]
    assert found[0]["headers"] == [{"key": "h", "value": "1"}]
    assert (found[0]["timestamp"], found[1]["timestamp"], found[1]["key_base64"]) == (
        1357041600000,
        1357041600001,
        "/w==",
    )


def test_bad_json_line_is_named_by_its_number_and_those_before_it_are_sent(broker: BrokerProcess, topic: str) -> None:
    failed = run(broker, "produce", topic, "--json", text='{"value":"good"}\n{"valeu":"bad"}\n{"value":"unread"}\n')
    assert failed.exit_code == 1
    assert failed.stderr.splitlines()[0].startswith("1 record to")
    assert "error: standard input: line 2: expected key, value, headers" in failed.stderr
    assert done(broker, "consume", topic, "-e").stdout == "good\n"


@pytest.mark.parametrize("acks", ["1", "0"])
def test_summary_claims_no_commit_that_was_not_waited_for(broker: BrokerProcess, topic: str, acks: str) -> None:
    produced = done(broker, "produce", topic, "--acks", acks, "--partition", "0", text="x\n")
    assert {"1": "not committed yet (acks=1)", "0": "not acknowledged (acks=0)"}[acks] in produced.stderr


@pytest.mark.parametrize(
    ("place", "values"),
    [
        ("beginning", "0123456789"),
        ("end", ""),
        ("7", "789"),
        ("99", ""),
        ("-3", "789"),
        ("-99", "0123456789"),
        ("@1357041600005", "56789"),
        ("2013-01-01T12:00:00.008Z", "89"),
        ("@1999999999999", ""),
    ],
)
def test_consume_starts_where_it_is_told(broker: BrokerProcess, place: str, values: str) -> None:
    done(broker, "topics", "create", "places", "--if-not-exists")
    if not done(broker, "consume", "places", "-e").stdout:
        lines = [json.dumps({"value": str(n), "timestamp": 1357041600000 + n}) for n in range(10)]
        done(broker, "produce", "places", "--json", text="\n".join(lines))
    assert done(broker, "consume", "places", "--from", place, "--exit", "-f", "%s").stdout == values


def test_consume_stops_after_max_and_reads_chosen_partitions(broker: BrokerProcess, topic: str) -> None:
    for partition in ("0", "1"):
        done(broker, "produce", topic, "-p", partition, text=f"a{partition}\nb{partition}\n")
    assert done(broker, "consume", topic, "-p", "1", "--max", "1").stdout == "a1\n"
    assert sorted(done(broker, "consume", topic, "-e").stdout.split()) == ["a0", "a1", "b0", "b1"]
    assert done(broker, "consume", topic, "--max", "0").stdout == ""
    wrong = run(broker, "consume", topic, "-p", "2", "-e")
    assert (wrong.exit_code, wrong.stderr.splitlines()[0]) == (
        2,
        f"error: invalid value for --partition: expected a partition of {topic} from 0 to 1, found 2",
    )


def test_follower_prints_new_records_at_once_and_ends_with_the_status_of_ctrl_c(
    broker: BrokerProcess, topic: str
) -> None:
    done(broker, "produce", topic, text="first\n")
    follower = program(broker, "consume", topic)
    assert follower.stdout is not None
    assert follower.stdout.readline() == b"first\n"
    done(broker, "produce", topic, text="second\n")
    assert follower.stdout.readline() == b"second\n"
    follower.send_signal(signal.SIGINT)
    rest, complaints = follower.communicate(timeout=100)
    assert (follower.returncode, rest, complaints) == (130, b"", b"")


def test_reader_that_goes_away_ends_consume_without_a_word(broker: BrokerProcess, topic: str) -> None:
    done(broker, "produce", topic, text="x" * 1000 + "\n")
    done(broker, "produce", topic, text=("y" * 1000 + "\n") * 2_000)
    consume = program(broker, "consume", topic, "--exit")
    assert consume.stdout is not None
    assert consume.stderr is not None
    consume.stdout.readline()
    consume.stdout.close()
    assert consume.wait(timeout=100) == 141
    assert consume.stderr.read() == b""
    consume.stderr.close()
    assert consume.stdin is not None
    consume.stdin.close()


def test_slow_pipe_is_sent_line_by_line(broker: BrokerProcess, topic: str) -> None:
    producer = program(broker, "produce", topic)
    follower = program(broker, "consume", topic, "--max", "2")
    assert producer.stdin is not None
    assert follower.stdout is not None
    for line in (b"one\n", b"two\n"):
        producer.stdin.write(line)
        producer.stdin.flush()
        assert follower.stdout.readline() == line  # although the pipe is still open
    follower.communicate(timeout=100)
    _, summary = producer.communicate(timeout=100)
    assert summary.startswith(b"2 records to")


def test_consumed_json_can_be_produced_again(broker: BrokerProcess, topic: str) -> None:
    done(broker, "produce", topic, "-K", ":", text="a:1\nb:2\n")
    lines = done(broker, "consume", topic, "-e", "-f", "json").stdout
    done(broker, "topics", "create", f"{topic[:40]}-copy", "-p", "2")
    done(broker, "produce", f"{topic[:40]}-copy", "--json", text=lines)
    copied = done(broker, "consume", f"{topic[:40]}-copy", "-e", "-f", "json").stdout
    assert sorted(copied.replace(f"{topic[:40]}-copy", topic).splitlines()) == sorted(lines.splitlines())


# ------------------------------------------------------------------ offsets, sql, log


def test_offsets_by_time(broker: BrokerProcess, topic: str) -> None:
    lines = [json.dumps({"value": "x", "partition": 0, "timestamp": 1000 * n}) for n in (1, 5, 3)]
    done(broker, "produce", topic, "--json", text="\n".join(lines))
    found = {}
    for when in ("earliest", "latest", "max", "@2000", "1970-01-01T00:00:06"):
        rows = json.loads(done(broker, "offsets", topic, "-p", "0", "--time", when).stdout)
        found[when] = [(row["offset"], row["timestamp"]) for row in rows]
    assert found == {
        "earliest": [(0, None)],
        "latest": [(3, None)],
        "max": [(1, 5000)],
        "@2000": [(1, 5000)],
        "1970-01-01T00:00:06": [(-1, None)],
    }


def test_sql_answers_from_the_tables(broker: BrokerProcess, topic: str) -> None:
    done(broker, "produce", topic, "-p", "0", text="1\n2\n3\n")
    query = f'SELECT count(*) AS n, max(value) AS top FROM "{topic}"'
    assert json.loads(done(broker, "sql", query).stdout) == [{"n": 3, "top": "3"}]
    assert json.loads(done(broker, "sql", "-", "--at-offset", "2", text=query).stdout) == [{"n": 2, "top": "2"}]
    assert json.loads(done(broker, "sql", query, "--at-version", f"{topic}:0=0").stdout) == [{"n": 0, "top": None}]
    timed = done(broker, "sql", query, "--format", "csv", "--timing")
    assert timed.stdout == "n,top\n3,3\n"
    assert re.fullmatch(r"1 row in \d+\.\d+ s\n", timed.stderr)
    failed = run(broker, "sql", "SELEC 1")
    assert failed.exit_code == 1
    assert "syntax error" in failed.stderr


def test_log_is_described_dumped_and_verified_while_the_broker_runs(broker: BrokerProcess, topic: str) -> None:
    for value in ("a", "b"):
        done(broker, "produce", topic, "-p", "0", "-K", ":", "-H", "h=1", text=f"key:{value}\n")
    rows = json.loads(done(broker, "log", "describe", topic).stdout)
    assert [(row["partition"], row["version"], row["high_watermark"], row["files"]) for row in rows] == [
        (0, 2, 2, 2),
        (1, 0, 0, 0),
    ]
    (one,) = json.loads(done(broker, "log", "describe", f"{topic}/0").stdout)
    assert [version["operation"] for version in one["newest_versions"]] == ["CREATE TABLE", "WRITE", "WRITE"]
    assert "Data files, the newest 2 of 2" in done(broker, "log", "describe", f"{topic}/0", "--format", "table").stdout

    dumped = done(broker, "log", "dump", f"{topic}/0", "--print-data").stdout.splitlines()
    assert re.fullmatch(r"Dumping 0{20}-[0-9a-f-]{36}\.parquet", dumped[0])
    assert dumped[1] == "Starting offset: 0"
    assert re.match(r"baseOffset: 0 lastOffset: 0 count: 1 version: 1 size: \d+", dumped[2])
    assert re.fullmatch(
        r"\| offset: 0 CreateTime: \d+ keySize: 3 valueSize: 1 leaderEpoch: 0 producerId: \d+ producerEpoch: 0 "
        r"sequence: 0 headerKeys: \[h\] key: key payload: a",
        dumped[3],
    )
    second = done(broker, "log", "dump", f"{topic}/0", "--from-offset", "1").stdout
    assert "offset: 1 " in second
    assert "| offset: 0 " not in second
    assert "payload" not in second
    file = dumped[0].removeprefix("Dumping ")
    assert "| offset: 0 " in done(broker, "log", "dump", f"{topic}/0", "--file", file).stdout

    verified = done(broker, "log", "verify", topic, "--format", "table")
    assert "2 partitions: every promise is kept" in verified.stderr
    assert "every promise is kept" in done(broker, "log", "verify", "--all", "--format", "csv").stderr
    assert "expected a topic" in run(broker, "log", "verify", "nobody").stderr


def test_breach_is_one_line_and_exit_code_1(broker: BrokerProcess, topic: str) -> None:
    done(broker, "produce", topic, "-p", "1", text="a\n")
    (file,) = (broker.root / "topics" / topic / "1").glob("*.parquet")
    original = file.read_bytes()
    file.write_bytes(original + b"more")
    try:
        failed = run(broker, "log", "verify", f"{topic}/1", "--format", "table")
        as_json = run(broker, "log", "verify", f"{topic}/1")
    finally:
        file.write_bytes(original)
    assert failed.exit_code == as_json.exit_code == 1
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("breach: ")]
    size = len(original)
    assert line == (
        f"breach: {topic}-1: sizes are exact: {file.name} (version 1): expected {size} bytes, found {size + 4}"
    )
    assert json.loads(as_json.stdout)[0]["breach_lines"] == [line.removeprefix("breach: ")]


# ------------------------------------------------------------------ perf, completion


def test_perf_prints_the_figures_of_kafkas_tools(broker: BrokerProcess) -> None:
    produced = done(broker, "perf", "produce", "perf", "--partitions", "2", "-n", "20000", "-b", "1000").stdout
    assert re.fullmatch(
        r"20000 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency, [\d.]+ ms max latency, "
        r"\d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.\n",
        produced,
    )
    header, line = done(broker, "perf", "consume", "perf").stdout.splitlines()
    assert header == CONSUME_HEADER
    assert line.split(", ")[4] == "20000"
    assert line.split(", ")[2] == f"{20000 * 100 / (1 << 20):.4f}"
    for options in ([], ["--end-to-end"]):
        average, percentiles = done(broker, "perf", "latency", "perf", "-n", "5", *options).stdout.splitlines()
        assert re.fullmatch(r"Avg latency: \d+\.\d{4} ms", average)
        assert re.fullmatch(r"Percentiles: 50th = [\d.]+, .*99\.9th = [\d.]+ ms, max = [\d.]+ ms", percentiles)


def test_topic_names_complete_from_the_broker_and_quietly_without_one(broker: BrokerProcess, topic: str) -> None:
    words = {"_BUS_COMPLETE": "bash_complete", "COMP_WORDS": f"bus consume {topic[:10]}", "COMP_CWORD": "2"}
    for address, expected in ((broker.address, f"plain,{topic}"), ("127.0.0.1:1", "")):
        completed = subprocess.run(
            [sys.executable, "-c", "from bus.cli.main import main; main()"],
            env={**os.environ, **words, "BUS_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        assert completed.stdout.strip() == expected
        assert completed.stderr == ""


def test_topics_complete_from_the_root_where_the_command_reads_one(
    broker: BrokerProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUS_ADDRESS", "127.0.0.1:1")

    def complete(*words: str) -> list[str]:
        found = ShellComplete(cli, {}, "bus", "_BUS_COMPLETE").get_completions(list(words), topic[:10])
        return [one.value for one in found]

    assert complete("log", "verify", "--root", str(broker.root)) == [topic]
    assert complete("log", "verify", "--root", "/no/such/root") == []
    monkeypatch.setenv("BUS_ROOT", str(broker.root))
    assert complete("log", "dump") == [topic]
    assert complete("log", "roll") == [], "that one asks a broker"


def test_commands_load_no_engine_that_they_do_not_need(broker: BrokerProcess) -> None:
    heavy = "[name for name in ('duckdb', 'pyspark', 'deltalake', 'pyarrow', 'pandas') if name in sys.modules]"
    for arguments in (["--help"], ["topics", "list"], ["log", "--help"]):
        code = f"import sys; from bus.cli.main import cli; cli({arguments!r}, standalone_mode=False); print({heavy})"
        loaded = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **environment(broker)},
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
        assert loaded.stdout.splitlines()[-1] == "[]", arguments


def test_the_command_itself_loads_no_grpc() -> None:
    code = "import sys; import bus.cli.main; print({'grpc', 'google.protobuf'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert loaded.stdout.strip() == "set()"


def test_arrow_does_not_import_pandas_into_the_command(broker: BrokerProcess, topic: str) -> None:
    code = """if True:
        import atexit, sys
        from bus.cli.main import main
        atexit.register(lambda: print({"pandas", "pyarrow"} & set(sys.modules)))
        main()
    """
    loaded = subprocess.run(
        [sys.executable, "-c", code, "log", "describe", topic],
        env={**os.environ, **environment(broker)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert loaded.stdout.splitlines()[-1] == "{'pyarrow'}"
