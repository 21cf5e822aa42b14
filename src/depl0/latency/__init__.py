"""Seconds on this machine: of whole networks side by side, and of single layers as tables for a latency budget."""

from depl0.latency.measure import Latency, measure_latency

__all__ = ["Latency", "measure_latency"]
