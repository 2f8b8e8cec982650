"""For spark-submit; the program is `bus.jobs.streaming_aggregate`, also as `python -m bus.jobs.streaming_aggregate`."""

import sys

from bus.jobs.streaming_aggregate import main

if __name__ == "__main__":
    sys.exit(main())
