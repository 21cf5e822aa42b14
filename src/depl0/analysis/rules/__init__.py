"""Rules for families of operators, which move or join channels, or mark them as unprunable."""
