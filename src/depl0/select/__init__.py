"""Selection of the gates to keep: one function from scores and configuration to gates, and its parts."""
