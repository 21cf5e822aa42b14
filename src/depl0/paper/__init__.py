"""What only the paper needs: its literal recipes, tables, ablation and claims."""
