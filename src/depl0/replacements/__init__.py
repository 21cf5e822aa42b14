"""Modules that take the place of a host's own where cutting channels alone would change what it computes."""
