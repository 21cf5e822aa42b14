"""What every room uses: files, registries, optional packages, precision, processes."""
