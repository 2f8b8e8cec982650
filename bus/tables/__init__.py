"""Topics, their views and the system views as tables, for those who only read: SQL, Spark, the command line."""
