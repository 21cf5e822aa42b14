"""Taking the closed channels out for good, with proof."""
