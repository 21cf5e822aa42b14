"""Which gates stay: one function from scores and configuration to gates, and what it is made of."""
