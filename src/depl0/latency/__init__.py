"""Measured latency: networks timed side by side, single layers, and the channel counts that a device runs well."""
