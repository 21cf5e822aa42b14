"""Deploy the network of a run: metadata for exported files, and int8 with its accuracy."""
