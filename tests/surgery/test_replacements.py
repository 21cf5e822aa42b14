"""The contract that all kinds of replacement modules keep, and that a new kind is one new file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import depl0
import depl0.replacements
from depl0.replacements.attention import AttentionSpec
from depl0.replacements.base import Replacement, kinds, replacement_from
from depl0.replacements.constant import Removal
from depl0.replacements.full_width import WidthSpec
from depl0.replacements.norm import NormSpec
from depl0.replacements.standardised import Standardisation

SPECS: dict[str, Any] = {
    "attention": AttentionSpec("torch", 2, 4, 0.5),
    "constant": Removal("conv", None, True),
    "full_width": WidthSpec(8, 1, None, False),
    "norm": NormSpec("layer", -1, 8, 1e-5, "weight", None),
    "standardised_conv": Standardisation(1e-6, 1.0, None),
}


def test_every_kind_is_tested_here() -> None:
    assert {kind.kind for kind in kinds()} == set(SPECS)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.kind)
def test_spec_survives_json_and_damage_is_refused(kind: type[Replacement]) -> None:
    data = json.loads(json.dumps(kind(SPECS[kind.kind]).to_dict()))
    assert replacement_from(data) == kind(SPECS[kind.kind])
    for key in data.keys() - {"kind"}:
        with pytest.raises(ValueError, match=f"describes no {kind.kind}: see {key}"):
            replacement_from({**data, key: [data[key]]})
    with pytest.raises(ValueError, match="see extra"):
        replacement_from({**data, "extra": 1})
    with pytest.raises(ValueError, match="no replacement is of the kind 'other'"):
        replacement_from({**data, "kind": "other"})


NEW = """
from dataclasses import dataclass
from torch import nn
from depl0.analysis.propagate import ModuleCall, ReplacedModule
from depl0.analysis.labels import Reason
from depl0.replacements.base import Replacement, outermost_calls, reads_and_gives, replace_module


@dataclass(frozen=True)
class ScaleSpec:
    width: int


class Scaled(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.spec = spec

    def forward(self, x):
        return x * self.spec.width


class ScaleReplacement(Replacement):
    kind = "scale"
    spec_type = ScaleSpec

    @classmethod
    def calls(cls, state, graph):
        return outermost_calls(graph, lambda path, _: type(state.modules.get(path)).__name__ == "TimesWidth")

    @classmethod
    def enter(cls, state, graph, path, nodes):
        [source], [result] = reads_and_gives(graph, nodes)
        value = state.values[source]
        for node in nodes:
            state.values[node] = value
        state.replaced[path] = ReplacedModule(cls(ScaleSpec(len(value.labels))), labels=[value.labels])
        state.module_calls[result] = ModuleCall(path, source, Reason("never"), (source,))
        return nodes

    def cut(self, model, path, positions):
        replace_module(model, path, Scaled(self.spec))
"""


@pytest.fixture
def new_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "scale_of_test.py").write_text(NEW)
    monkeypatch.setattr(depl0.replacements, "__path__", [*depl0.replacements.__path__, str(tmp_path)])
    kinds.cache_clear()
    yield
    kinds.cache_clear()


class TimesWidth(nn.Module):
    """Another function of fewer channels, which no kind of ours knows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(x.shape[1])


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), TimesWidth(), nn.Linear(8, 2))


def test_new_kind_is_one_file(new_kind: None, tmp_path: Path) -> None:
    x = torch.randn(4, 3)
    gated = depl0.attach(build(), x)
    assert gated.plan.to_dict()["replaced"] == {"scale": ["1"]}
    gated.fix_gates((torch.arange(gated.plan.num_gates) % 2).float())
    compact = gated.extract()
    assert compact[0].out_features == 4 and type(compact[1]).__name__ == "Scaled"
    loaded = depl0.load(depl0.save(compact, tmp_path / "compact"), build)
    torch.testing.assert_close(loaded(x), gated.eval()(x))
