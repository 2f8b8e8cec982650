"""`bus jobs run offset_report` for spark-submit."""

from bus.jobs.__main__ import main

if __name__ == "__main__":
    main("offset_report")
