"""Whether two networks compute the same function: the cases, the comparison, the certificate."""
