"""Functional equivalence of two networks: the cases, the comparison, the certificate."""
