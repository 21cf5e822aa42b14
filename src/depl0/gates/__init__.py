"""The random gates that open and close channels."""
