"""Helpers shared by the callbacks of all trainers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from typing_extensions import Unpack

from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.search.calibration import Calibration, Loss
from depl0.search.config import SearchChanges, SearchConfig
from depl0.search.search import Search


class SearchHolder:
    """The arguments and the results of a callback that runs a search in a trainer."""

    _begins = "the training"
    """The call that makes the search, as named in an error."""

    def __init__(
        self,
        gated: str | None = None,
        *,
        steps: int | None = None,
        calibrate: Calibration | Iterable[Any] | None = None,
        loss: Loss | None = None,
        averages: Iterable[nn.Module] = (),
        config: SearchConfig | None = None,
        **changes: Unpack[SearchChanges],
    ) -> None:
        self._name, self._steps, self._averages = gated, steps, list(averages)
        self._calibration = Calibration.of(calibrate, loss)
        self._settings: dict[str, Any] = {"config": config, **changes}
        self._search: Search | None = None
        self._compact: nn.Module | None = None

    @property
    def search(self) -> Search:
        """Return the search of the current or finished training."""
        if self._search is None:
            raise InputError(f"there is no search before {self._begins}.", hint=f"call {self._begins} first.")
        return self._search

    @property
    def compact(self) -> nn.Module:
        """Return the pruned model in evaluation mode; a search that was stopped early is finished now."""
        if self._compact is None:
            self._compact = self.search.finish()
        return self._compact.eval()

    def _finish(self) -> None:
        """Freeze the gates within the budget and extract the pruned model, if the search has made all its steps."""
        if self.search.done >= self.search.steps:
            self._compact = self.search.finish()


def find_gated(model: nn.Module, name: str | None) -> GatedModel:
    """Return the gated network in a module (or the module itself), by the name of its attribute if one is given."""
    modules = model.named_modules(remove_duplicate=name is None)
    gated = {path: module for path, module in modules if isinstance(module, GatedModel)}
    chosen = [module for path, module in gated.items() if name in (None, path)]
    if len(chosen) == 1:
        return chosen[0]
    called = "" if name is None else f" called {name!r}"
    raise InputError(
        f"expected one gated network{called} in {type(model).__name__}, found {', '.join(map(repr, gated)) or 'none'}.",
        hint="hold what depl0.attach(model, example) returns in an attribute; choose one of several with gated='…'.",
    )


def check_trained(gated: GatedModel, optimizers: Iterable[Any]) -> None:
    """Raise if no optimizer holds the current weights of the network, or none holds its gates."""
    held = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for what, parameters in {"weights": gated.weight_parameters(), "gates": gated.gate_parameters()}.items():
        wanted = [p for p in parameters if p.requires_grad]
        if wanted and not any(id(p) in held for p in wanted):
            raise InputError(
                f"no optimizer trains the {what} of the gated network.",
                hint="make optimizers from gated.weight_parameters() and gated.gate_parameters(), after a saved state "
                "was loaded.",
            )


def match_size(average: nn.Module, gated: GatedModel) -> None:
    """Cut the copies of the gated network in an averaged model to the current size of the network."""
    for copied in average.modules():
        if isinstance(copied, GatedModel):
            copied.match_size(gated)
