"""Rules of the audit: its events, and how they are kept until they are in the log."""
