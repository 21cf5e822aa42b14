"""Selection of the channels to remove: scores, freezing, and the search for any training loop."""
