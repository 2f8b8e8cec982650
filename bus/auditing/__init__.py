"""Rules of the audit: what is told of callers, and how it is kept until it is in the log."""
