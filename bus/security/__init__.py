"""Who a caller is (users, passwords, tokens, keys), what it may do (ACLs), how much (quotas), and what is kept of it.

Rules decide on values and know no clock, loop, wire or table. `oauth/` and `key_material.py` read files and ask
identity providers; the broker and its clients share them.
"""
