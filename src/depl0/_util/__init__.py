"""Utilities shared by all packages: files, registries, optional dependencies, precision, processes."""
