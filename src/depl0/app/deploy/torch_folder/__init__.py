"""A folder that needs no depl0: ``model.safetensors``, ``config.json``, ``model.py`` and a model card."""

from depl0.app.deploy.torch_folder.folder import FILES, ExportedFolder, export_folder

__all__ = ["FILES", "ExportedFolder", "export_folder"]
