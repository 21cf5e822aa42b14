"""``model.py`` of an exported folder: builds the compact network from plain PyTorch and loads it strictly."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from depl0._util.user_code import load_callable, wanted
from depl0.app.deploy.torch_folder import parts
from depl0.app.deploy.torch_folder.sources import copied_sources
from depl0.app.deploy.torch_folder.structure import Structure
from depl0.app.models import registry
from depl0.replacements.base import kinds, replace_module

_IMPORTS = {
    "json": "import json",
    "math": "import math",
    "dataclass": "from dataclasses import dataclass",
    "cache": "from functools import cache",
    "Path": "from pathlib import Path",
    "Any": "from typing import Any",
    "Literal": "from typing import Literal",
    "final": "from typing import final",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "load_file": "from safetensors.torch import load_file",
    "Tensor": "from torch import Tensor",
    "nn": "from torch import nn",
}
"""a name in the code -> the line that it needs"""

_BUILD = '''FOLDER = Path(__file__).resolve().parent


def build() -> nn.Module:
    """Build the compact network with the sizes of config.json; its weights are not loaded yet."""
    config = json.loads((FOLDER / "config.json").read_text())
    network = {call}
{steps}
    return network


def load(file: str | Path = FOLDER / "model.safetensors") -> nn.Module:
    """Build the compact network, load its weights, and put it in evaluation mode."""
    network = build()
    network.load_state_dict(load_file(str(file)), strict=True)
    return network.eval()
'''


def model_code(
    spec: str, sizes: Mapping[str, int | tuple[int, int]], structure: Structure, title: str
) -> dict[str, str]:
    """Return ``model.py`` for a network that a spec describes, and the files of the user that it imports."""
    line, call, files = _constructor(spec, sizes)
    used: list[Callable[..., Any]] = []
    steps: list[str] = []
    for kind in kinds():
        if kind.kind in structure.replaced:
            used += kind.exported
            steps.append(f'    for path, given in config["replaced"]["{kind.kind}"].items():')
            steps.append(f"        {kind.rebuild.__name__}(network, path, given)")
    if structure.identities:
        steps += ['    for path in config["identities"]:', "        replace_module(network, path, nn.Identity())"]
    used = [*([replace_module] if steps else []), *used, parts.resize]
    steps.append('    resize(network, config.get("shapes", {}), config.get("attributes", {}))')
    if structure.positions:
        used.append(parts.keep)
        steps.append('    keep(network, config["positions"])')
    sources = [inspect.getsource(part).rstrip() for part in dict.fromkeys(used)]
    body = "\n\n\n".join([*sources, _BUILD.format(call=call, steps="\n".join(steps))])
    library = spec.partition(":")[0]
    needed = f", and {library} for the network itself" if library in ("torchvision", "timm") else ""
    imports = [text for name, text in _IMPORTS.items() if re.search(rf"\b{name}\b", body)]
    head = "\n".join([*imports, line])
    title = f'"""{title}\n\nNeeds torch and safetensors{needed}. Use it as: network = load().\n"""'
    return {**files, "model.py": f"{title}\n\nfrom __future__ import annotations\n\n{head}\n\n\n{body}"}


def _constructor(spec: str, sizes: Mapping[str, int | tuple[int, int]]) -> tuple[str, str, dict[str, str]]:
    """Return the import and the call that build the dense network, and the files that are copied for that."""
    where, colon, name = spec.rpartition(":")
    if where == "torchvision":
        call = f"torchvision.models.get_model({name!r}, weights=None, num_classes={sizes['num_classes']})"
        return "import torchvision", call, {}
    if where == "timm":
        classes, channels = sizes["num_classes"], sizes["in_channels"]
        call = f"timm.create_model({name!r}, pretrained=False, num_classes={classes}, in_chans={channels})"
        return "import timm", call, {}
    if colon:
        own = load_callable(spec, "model")
        module, arguments = own.module, own.wanted(sizes)
    else:
        make = registry.MODELS.find(spec)
        found, name, arguments = inspect.getmodule(make), spec, wanted(make, sizes)
        assert found is not None
        module = found
    source, files = copied_sources(module)
    call = f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"
    return f"from {source} import {name}", call, files
