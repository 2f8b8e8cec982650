"""Mending a damaged table: how far its log can be followed, what data files hold, and one version that says it all."""
