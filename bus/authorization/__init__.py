"""Rules of authorization: access control lists, and what they allow (Kafka's ACLs: KIP-11, KIP-290)."""
