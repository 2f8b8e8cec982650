"""The log of users, followed and changed by every broker alike."""
