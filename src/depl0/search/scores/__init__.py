"""Initial channel importance, before the search begins."""
