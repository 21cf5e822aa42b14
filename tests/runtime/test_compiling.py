"""``run.compile``: one graph with the gates inside, whatever the budget does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from depl0.app.runtime import execution as compiling
from depl0.app.training import loop
from depl0.app.training.search import SearchPhase
from depl0.errors import InputError, TrainingError
from tests.networks.tiny import Noisy, interrupt, run, tiny_recipe
from tests.support.resume import what_matters
from tests.support.session import make_session

pytestmark = [pytest.mark.runs, pytest.mark.usefixtures("remembered_plans")]


@pytest.fixture(autouse=True)
def _without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the graphs, and run them as they are: what is tested does not depend on a C++ compiler."""
    monkeypatch.setattr(compiling, "BACKEND", "eager")
    torch._dynamo.reset()
    counters.clear()


@pytest.mark.parametrize(
    "fields",
    [
        {"gates__budget": 0.5},
        {"gates__budget": 0.5, "gates__generator": "independent"},
        {"penalty__weight": 1e-3, "gates__preset": "paper", "gates__direction": "backward"},
    ],
    ids=["fc, budget", "independent, budget", "the paper's, penalty"],
)
def test_a_search_is_one_graph(tmp_path: Path, fields: dict[str, Any]) -> None:
    session, gated = make_session(tmp_path, search__warmup=0.0, search__cut="never", **fields)
    phase = SearchPhase(session, gated)
    plain = loop.prepare_phase(session.accelerator, phase).train()
    network = compiling.compiled(plain, session.accelerator.device)
    thresholds = set()
    for step, (images, labels) in enumerate([*session.data.train.epoch(0), *session.data.train.epoch(1)]):
        phase.before_step()
        loop.train_step(session, phase, network, images, labels)
        loop.evaluate(session.accelerator, phase.model, [(images, labels)], session.task)
        thresholds.add(float(gated.threshold.shift) if gated.threshold is not None else step)
    assert len(thresholds) == 6  # the budget moved on
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert not any("_orig_mod" in name for name in phase.model.state_dict())


def test_a_compiled_run_that_was_interrupted_is_the_plain_one(tmp_path: Path) -> None:
    run(tiny_recipe(), tmp_path / "plain")
    recipe = tiny_recipe(run__compile=True)
    with pytest.raises(TrainingError, match="interrupted"):
        run(recipe, tmp_path / "run", Noisy(5, interrupt))
    run(recipe, tmp_path / "run", resume=True)
    assert what_matters(tmp_path / "run") == what_matters(tmp_path / "plain")
    assert counters["stats"]["unique_graphs"] >= 2
    assert not counters["graph_break"]


def test_without_a_compiler_the_run_is_refused_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "no-such-compiler"))
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", _uncached_compiler_search())
    with pytest.raises(InputError, match=r"finds no C\+\+ compiler") as caught:
        run(tiny_recipe(run__compile=True), tmp_path / "run")
    assert "set run.compile to false" in str(caught.value)


def _uncached_compiler_search() -> Any:
    """The search for a compiler, without what it remembers from other tests."""
    from torch._inductor import cpp_builder

    search = cpp_builder.get_cpp_compiler
    cpp_builder.cpp_compiler_search.cache_clear()
    return search
