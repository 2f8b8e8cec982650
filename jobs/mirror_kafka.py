"""For spark-submit; the program is `bus.jobs.mirror_kafka`, also as `python -m bus.jobs.mirror_kafka`."""

import sys

from bus.jobs.mirror_kafka import main

if __name__ == "__main__":
    sys.exit(main())
