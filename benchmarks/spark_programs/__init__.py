"""Programs that measure Spark on both sides; each prints one line of JSON, seconds by what was measured."""
