"""Decide which channels go: scores, freezing, convergence, and the search that any loop drives."""
