"""Training with gates: search a structure, freeze it, extract it, fine-tune it, and write down what happened."""
