"""Analysis of coupled channels: groups, prunable channels, and the sites of their gates."""
