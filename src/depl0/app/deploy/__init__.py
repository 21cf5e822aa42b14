"""Export the network of a run, with its metadata."""

from depl0.app.deploy.hub import push_to_hub
from depl0.app.deploy.source import Source, open_source

__all__ = ["Source", "open_source", "push_to_hub"]
