"""Writing to topics from Spark, exactly once: options, columns, the order and the numbers of rows, and who sends
them. `writers.py` is what Spark sees."""
