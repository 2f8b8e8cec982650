"""Identities (users, passwords, tokens, keys), permissions (ACLs), quotas, and the audit.

Rules decide on values and know no clock, loop, wire or table. `oauth/` and `key_material.py` read files and ask
identity providers; the broker and its clients share them.
"""
