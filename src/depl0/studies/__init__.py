"""Many runs in one folder, and what they say together: sweeps over budgets, comparisons, the ablation."""
