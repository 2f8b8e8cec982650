"""PySpark jobs, one a module: a command with its options, DataFrame -> DataFrame; and what they share.

Each is `bus jobs run NAME`; by spark-submit it runs with the program of all jobs, `__main__.py`, or with its script in
the folder `jobs/` of the checkout.
"""
