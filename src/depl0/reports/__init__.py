"""Reports of runs, for people (HTML, figures) and for programs (JSON, CSV); and the published tables beside them."""
