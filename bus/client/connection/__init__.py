"""What a client knows of the brokers, and how it calls them."""
