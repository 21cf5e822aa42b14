"""The user's network: its inputs, private copies of it, and how it is called."""
