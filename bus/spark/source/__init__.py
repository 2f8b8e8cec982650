"""`format("bus")` for reading: options, offsets and plans are plain values; `access` is how the log is reached; the
readers are what Spark calls."""
