"""PySpark entry points, one per file: arguments, DataFrame -> DataFrame, main."""
