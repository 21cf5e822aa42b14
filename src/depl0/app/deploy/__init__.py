"""A run's network as the files that people deploy."""

from depl0.app.deploy.hub import push_to_hub
from depl0.app.deploy.source import Source, open_source
from depl0.app.deploy.torch_folder import ExportedFolder, export_folder

__all__ = ["ExportedFolder", "Source", "export_folder", "open_source", "push_to_hub"]
