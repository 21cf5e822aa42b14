"""Permanent removal of the closed channels, with a certificate of equivalence."""
