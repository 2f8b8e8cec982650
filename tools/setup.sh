#!/usr/bin/env bash
# Creates the virtual environment and everything in it, and fetches Delta's jars for Spark, so that later starts need
# no network. Safe to repeat: does nothing while pyproject.toml, Python, Java and this folder are what they were.
# An interrupted run is simply run again. Called by `make setup` with PYTHON and VENV.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-python3}"
VENV="${VENV:-.venv}"
JARS="${BUS_SPARK_JARS:-.jars}"
# DuckDB's extension for Delta tables, a judge of the tests. It needs the very DuckDB that it is made for, so both are in
# a folder that no other program looks into.
READER="duckdb-ext-delta==1.4.4.20260205"
STAMP="$VENV/.setup-stamp"
LOG="$VENV/setup.log"

say() { printf '%s\n' "$*"; }
fail() {
    printf '\nset-up stopped: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        printf '%s' "$JAVA_HOME/bin/java"
    else
        command -v java || true
    fi
}

# What the finished set-up depends on. One line each; compared as text.
fingerprint() {
    cksum <pyproject.toml
    cksum <tools/setup.sh
    pwd -P
    command -v "$PYTHON" || true
    local java
    java="$(find_java)"
    readlink -f "$java" 2>/dev/null || printf '%s\n' "$java"
    printf '%s\n' "$JARS"
}

is_done() {
    [ -f "$STAMP" ] && [ -x "$VENV/bin/python" ] && [ -x "$VENV/bin/bus" ] || return 1
    compgen -G "$JARS/*delta-spark_*.jar" >/dev/null || return 1
    [ -x "$(find_java)" ] && [ "$(fingerprint)" = "$(cat "$STAMP")" ]
}

check_python() {
    command -v "$PYTHON" >/dev/null || fail "expected a Python 3.10 or newer, found no '$PYTHON'" \
        "Debian, Ubuntu: apt install python3 python3-venv" "macOS: brew install python" \
        "another one that is there: make setup PYTHON=/path/to/python3"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail \
        "expected Python 3.10 or newer, found $("$PYTHON" --version 2>&1)" \
        "name another one: make setup PYTHON=/path/to/python3.12"
    "$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail \
        "expected Python's venv module, $PYTHON comes without it" \
        "Debian, Ubuntu: apt install python3-venv"
    say "  Python $("$PYTHON" -c 'import platform; print(platform.python_version())')"
}

check_java() {
    local java how version
    how=("Debian, Ubuntu: apt install openjdk-17-jre-headless" "macOS: brew install openjdk@17"
        "any other: sdk install java 17.0.15-tem (sdkman)" "one that is there: export JAVA_HOME=/path/to/jdk"
        "Java runs Spark only; broker, clients and the embedded SQL need none: pip install '.[broker,sql]'")
    java="$(find_java)"
    [ -n "$java" ] && [ -x "$java" ] || fail "expected a Java 17 or 21 for Spark, found ${java:-none}" "${how[@]}"
    version="$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)"
    case "$version" in
    17 | 21) ;;
    *) fail "expected a Java 17 or 21 for Spark, found version ${version:-unknown} at $java" "${how[@]}" ;;
    esac
    "$java" --list-modules | grep -q '^jdk.incubator.vector' || fail \
        "expected a Java with the module jdk.incubator.vector, $java is a trimmed runtime without it" "${how[@]}"
    say "  Java $version"
}

make_venv() {
    if [ -x "$VENV/bin/python" ] && ! "$VENV/bin/python" -c 'import pip' 2>/dev/null; then
        rm -rf "$VENV" # half made, or its Python is gone
    fi
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
}

# The whole of pip's output goes to the log, one line a package to the reader.
install_packages() {
    say "  the first time this fetches about 600 MB, most of it Spark; the whole output: $LOG"
    if ! "$VENV/bin/python" -m pip install --disable-pip-version-check --progress-bar off -e ".[dev]" 2>&1 |
        tee "$LOG" | show_progress; then
        tail -n 15 "$LOG" >&2
        fail "pip could not install the packages (see above)" "run it again when the cause is gone; what is there is kept"
    fi
}

show_progress() {
    local line package
    while IFS= read -r line; do
        case "$line" in
        "Collecting "*)
            package="${line#Collecting }"
            say "  + ${package%% *}"
            ;;
        "Building wheels "*) say "  building wheels; Spark's takes a minute" ;;
        "Installing collected packages"*) say "  installing them" ;;
        esac
    done
}

install_reader() {
    if ! "$VENV/bin/python" -m pip install --disable-pip-version-check --upgrade --target "$VENV/readers" "$READER" \
        >>"$LOG" 2>&1; then
        tail -n 15 "$LOG" >&2
        fail "pip could not install $READER (see above)" "run it again when the cause is gone; what is there is kept"
    fi
}

fetch_jars() {
    if ! "$VENV/bin/python" -m bus.spark.jars "$JARS" >>"$LOG" 2>&1; then
        tail -n 15 "$LOG" >&2
        fail "Delta's jars for Spark could not be fetched (see above)" \
            "behind a mirror: DEFAULT_ARTIFACT_REPOSITORY=<its address> make setup (Spark's own variable)" \
            "behind a proxy: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=... -Dhttps.proxyPort=...' make setup"
    fi
}

if [ -L "$VENV" ]; then
    say "$VENV is a link to the environment of another checkout: nothing is installed into it"
    exit 0
fi
is_done && exit 0

say "[1/4] what must be there"
check_python
check_java
say "[2/4] virtual environment $VENV"
make_venv
rm -f "$STAMP"
say "[3/4] Python packages"
install_packages
install_reader
say "[4/4] Delta's jars for Spark, into $JARS"
fetch_jars
fingerprint >"$STAMP"
say "ready. Next: make demo"
