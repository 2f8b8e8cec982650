"""PySpark entry points, one per file: arguments, DataFrame -> DataFrame, main. What they share is in `bus.jobs`."""
