"""Figures of a run, drawn with matplotlib: for files on white, for the page in the page's own colours."""
