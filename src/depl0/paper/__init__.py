"""What only the paper needs: its recipes, tables, ablation and claims."""
