"""`bus jobs run compact_keys` for spark-submit."""

from bus.jobs.__main__ import main

if __name__ == "__main__":
    main("compact_keys")
