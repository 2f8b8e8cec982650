"""`bus jobs run streaming_aggregate` for spark-submit."""

from bus.jobs.__main__ import main

if __name__ == "__main__":
    main("streaming_aggregate")
