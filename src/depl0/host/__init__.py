"""The user's network: its inputs, private copies of it, and calls of it."""
