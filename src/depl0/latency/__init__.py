"""Measured latency: side by side, of single layers, and what a device likes."""
