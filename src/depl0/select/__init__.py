"""Which gates a budget leaves open: the threshold that follows it, and whole channels that keep it."""
