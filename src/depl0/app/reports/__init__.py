"""Reports of runs, for people (HTML, Markdown, figures) and for programs (JSON)."""

from depl0._util.optional import check_installed

check_installed("jinja2", "matplotlib", purpose="for reports")
