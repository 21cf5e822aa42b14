"""Many runs in one folder, and what they say together: comparisons of methods and budgets."""

from depl0._util.optional import check_installed

check_installed("matplotlib", purpose="for studies")
