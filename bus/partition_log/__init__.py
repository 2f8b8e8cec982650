"""Rules of one partition's log: which offset a record gets, what a reader may see, when a commit may happen."""
