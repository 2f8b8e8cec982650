"""Scripts for spark-submit, one for each of `bus.jobs`."""
