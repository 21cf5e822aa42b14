"""Studies: many runs in one folder and their joint results, such as comparisons of methods and budgets."""

from depl0._util.optional import check_installed

check_installed("matplotlib", purpose="for studies")
