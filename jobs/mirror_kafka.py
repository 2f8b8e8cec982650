"""`bus jobs run mirror_kafka` for spark-submit."""

from bus.jobs.__main__ import main

if __name__ == "__main__":
    main("mirror_kafka")
