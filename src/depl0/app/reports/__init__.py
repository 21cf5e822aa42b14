"""Reports of runs, as a page, figures and tables."""

from depl0._util.optional import check_installed

check_installed("jinja2", "matplotlib", purpose="for reports")
