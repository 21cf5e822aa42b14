"""What the paper claims, judged by runs: which runs there are, what they show, and the page that says so."""

from __future__ import annotations

from depl0.studies.claims.judge import DEFAULT_CONTROL, judge
from depl0.studies.claims.page import page, write_claims

__all__ = ["DEFAULT_CONTROL", "judge", "page", "write_claims"]
