"""PySpark jobs, one a module: arguments, DataFrame -> DataFrame, main; and what they share.

Each runs as `python -m bus.jobs.NAME`, and by spark-submit with its script in `jobs/`.
"""
