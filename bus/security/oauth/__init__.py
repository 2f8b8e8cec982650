"""OAuth 2 as far as brokers and clients share it: the messages of OAUTHBEARER, where tokens come from, documents of
identity providers.
"""
