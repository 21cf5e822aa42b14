"""Reproduction of the paper: its recipes, tables, ablation and claims."""
