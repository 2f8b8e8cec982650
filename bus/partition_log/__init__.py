"""Rules of one partition's log: the offsets of records, their visibility to readers, and the time of commits."""
