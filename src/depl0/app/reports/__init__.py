"""Reports of runs, for people (HTML, figures) and for programs (JSON, CSV); and the published tables beside them."""

from depl0._util.optional import check_installed

check_installed("jinja2", "matplotlib", purpose="for reports")
