"""Many runs in one folder, and what they say together: sweeps over budgets, comparisons, the ablation."""

from depl0._util.optional import check_installed

check_installed("matplotlib", purpose="for studies")
