"""The cluster metadata on their controller: the log, how it changes, and what keeps it small."""
