"""``model.py`` of an exported folder: builds the compact network from plain PyTorch and loads it strictly."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias

from depl0._util.user_code import load_callable, wanted
from depl0.app.deploy.torch_folder import parts
from depl0.app.deploy.torch_folder.inlining import Inliner, import_order, is_installed
from depl0.app.deploy.torch_folder.structure import Structure
from depl0.app.models import registry
from depl0.replacements import attention as _pruned_attention
from depl0.replacements import full_width as _full_width
from depl0.replacements import norm as _counted_norm
from depl0.replacements import standardised as _standardised
from depl0.replacements import window as _pruned_window

Named: TypeAlias = tuple[ModuleType, str]
"""a class or function of ours: its module, and its name"""

_NEEDED = ("import json", "from pathlib import Path", "from torch import Tensor, nn", "import torch")
_LOAD = "from safetensors.torch import load_file"


def model_code(spec: str, sizes: Mapping[str, int | tuple[int, int]], structure: Structure, title: str) -> str:
    """Return the text of ``model.py`` for a network that a spec describes."""
    imports, definitions, call = _constructor(spec, sizes, _replacements(structure))
    used: list[Any] = [parts.resize]
    steps = [step for kind, step in _STEPS.items() if getattr(structure, kind)]
    if steps:
        used.insert(0, parts.replace)
    steps.append('    resize(network, config.get("shapes", {}), config.get("attributes", {}))')
    if structure.positions:
        used.append(parts.keep)
        steps.append('    keep(network, config["positions"])')
    if structure.full_width:
        steps += [
            '    for path, kept in config["full_width"].items():',
            '        places = torch.tensor(kept["places"])',
            '        keep_full_width(network.get_submodule(path), WidthSpec(**kept["spec"]), places)',
        ]
    if structure.constants:
        used = [parts.ConstantLayer, *([] if parts.replace in used else [parts.replace]), *used]
        steps += [
            '    for path in config.get("identities", []):',
            "        replace(network, path, nn.Identity())",
            '    for path, sizes in config["constants"].items():',
            "        replace(network, path, ConstantLayer(**sizes))",
        ]
    sources = [inspect.getsource(part).rstrip() for part in used]
    head = _sorted_imports([*_NEEDED, _LOAD, *imports.splitlines()])
    body = [definitions] if definitions else []
    return "\n\n\n".join(
        [
            f'"""{title}\n\nNeeds torch and safetensors{_libraries(spec)}. Use it as: network = load().\n"""\n\n'
            f"from __future__ import annotations\n\n{head}\n\nFOLDER = Path(__file__).resolve().parent",
            *body,
            *sources,
            _BUILD.format(call=call, steps="\n".join(steps)),
        ]
    )


# Modules of other classes come first: they take over the dense parameters, which then get their sizes.
_STEPS = {
    "norms": """    for path, spec in config["norms"].items():
        replace(network, path, CountedNorm(network.get_submodule(path), NormSpec(**spec)))""",
    "attentions": """    for path, spec in config["attentions"].items():
        replace(network, path, PrunedAttention(network.get_submodule(path), AttentionSpec(**spec)))""",
    "windows": """    for path, spec in config["windows"].items():
        replace(network, path, PrunedWindowAttention(network.get_submodule(path), AttentionSpec(**spec)))""",
    "standardised": """    for path, how in config["standardised"].items():
        replace(network, path, StandardisedConv2d(network.get_submodule(path), Standardisation(**how)))""",
}


_OURS: Mapping[str, tuple[Named, ...]] = {
    "norms": ((_counted_norm, "CountedNorm"),),
    "attentions": ((_pruned_attention, "PrunedAttention"),),
    "windows": ((_pruned_window, "PrunedWindowAttention"),),
    "standardised": ((_standardised, "StandardisedConv2d"),),
    "full_width": ((_full_width, "WidthSpec"), (_full_width, "keep_full_width")),
}
"""what the steps above need, for each part of a structure"""


def _replacements(structure: Structure) -> list[Named]:
    """Return our own classes and functions that the network needs."""
    return [one for name, ours in _OURS.items() if getattr(structure, name) for one in ours]


_BUILD = '''def build() -> nn.Module:
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


def _constructor(
    spec: str, sizes: Mapping[str, int | tuple[int, int]], others: Sequence[Named]
) -> tuple[str, str, str]:
    """Return import lines, definitions and the call that builds the dense network; other classes are added."""
    where, colon, name = spec.rpartition(":")
    if where == "torchvision":
        call = f"torchvision.models.get_model({name!r}, weights=None, num_classes={sizes['num_classes']})"
        return _with_classes("import torchvision", others, call)
    if where == "timm":
        classes, channels = sizes["num_classes"], sizes["in_channels"]
        call = f"timm.create_model({name!r}, pretrained=False, num_classes={classes}, in_chans={channels})"
        return _with_classes("import timm", others, call)
    if not colon:
        make = registry.MODELS.find(spec)
        module, name, arguments = inspect.getmodule(make), spec, wanted(make, sizes)
    else:
        own = load_callable(spec, "model")
        module, arguments = own.module, own.wanted(sizes)
    assert module is not None
    call = f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"
    if is_installed(module):
        return _with_classes(f"from {module.__name__} import {name}", others, call)
    inliner = Inliner(module)
    inliner.add(module, name)
    _add_classes(inliner, others)
    return *inliner.text(), call


def _with_classes(line: str, classes: Sequence[Named], call: str) -> tuple[str, str, str]:
    """Return import lines, the definitions of these classes of ours, and the call."""
    if not classes:
        return line, "", call
    inliner = Inliner(classes[0][0])
    _add_classes(inliner, classes)
    imports, definitions = inliner.text()
    return f"{line}\n{imports}", definitions, call


def _add_classes(inliner: Inliner, classes: Sequence[Named]) -> None:
    for module, name in classes:
        inliner.add(module, name)


def _libraries(spec: str) -> str:
    library = spec.partition(":")[0]
    return f", and {library} for the network itself" if library in ("torchvision", "timm") else ""


def _sorted_imports(lines: list[str]) -> str:
    """Join imports from one module, Python's own first, without repetitions."""
    names: dict[str, dict[str, None]] = {}
    plain: dict[str, None] = {}
    for line in lines:
        if line.startswith("from "):
            module, _, what = line.removeprefix("from ").partition(" import ")
            names.setdefault(module, {}).update(dict.fromkeys(what.split(", ")))
        else:
            plain[line] = None
    joined = [*plain, *(f"from {module} import {', '.join(sorted(what))}" for module, what in names.items())]
    ordered = sorted(joined, key=import_order)
    split = sum(not import_order(line)[0] for line in ordered)
    return "\n".join([*ordered[:split], *([""] if 0 < split < len(ordered) else []), *ordered[split:]])
