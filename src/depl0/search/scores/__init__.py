"""What a channel is worth before the search begins."""
