"""Which channels of a network belong together, which of them can be pruned, and where their gates go."""
