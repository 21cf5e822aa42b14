"""Selection of the channels to remove: scores, convergence, freezing, and the search for any training loop."""
