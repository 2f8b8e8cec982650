"""Users and what proves their passwords: pure decisions about a log of their own."""
