"""Replacements for modules of the host whose function would change if channels were merely cut."""
