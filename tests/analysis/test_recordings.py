"""Recording of forward passes: which modes are recorded, shared inputs, and several threads at once."""

from __future__ import annotations

import io
import logging
import random
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

import depl0
import depl0.analysis.traces
from depl0.host.inputs import ExampleInputs
from depl0.search.recovery.memory import pieces
from tests.networks.structures import STRUCTURES, Classifier, NoNorm, conv, image
from tests.support.compare import call, distance, random_gates

pytestmark = pytest.mark.structures


class TwoLayers(Classifier):
    def __init__(self) -> None:
        super().__init__(6)
        self.one, self.two, self.other = conv(3, 8), conv(8, 6), conv(8, 6)


class OtherLayer(TwoLayers):
    """The functions are the same, their parameters are not."""

    def features(self, x: Tensor) -> Tensor:
        return (self.other if self.training else self.two)(F.relu(self.one(x)))


class OtherOperand(TwoLayers):
    """The functions are the same, and so are their parameters, but not what they are given."""

    def features(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        one, two = self.two(x), self.other(x)
        return F.relu(one) + (one if self.training else two)


ALIKE = [NoNorm, *(STRUCTURES[name].build for name in ("Residual", "Dropouts"))]
OTHERS = [OtherLayer, OtherOperand, STRUCTURES["AuxiliaryHead"].build]


@pytest.mark.parametrize("build", [*ALIKE, *OTHERS])
def test_training_is_recorded_where_it_is_another_path(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    record, modes = depl0.analysis.traces.record, list[str]()
    monkeypatch.setattr(depl0.analysis.traces, "record", lambda *args: modes.append(args[2]) or record(*args))
    inputs = STRUCTURES[build.__name__].inputs if build.__name__ in STRUCTURES else image(size=24, batch=1)
    torch.manual_seed(0)
    plan = depl0.plan(build(), inputs)
    assert modes == (["evaluation"] if build in ALIKE else ["evaluation", "training"])
    assert "training mode" in plan.covered
    assert plan.same_in_training == (build in (NoNorm, STRUCTURES["Dropouts"].build))


class MaskedTokens(nn.Module):
    """Attention with a mask of (tokens, tokens), which is as long as the batch by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(4))
        self.mid, self.head = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.into(x)
        x = x + F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), mask)
        return self.head(F.relu(self.mid(x)))


def test_a_mask_as_long_as_the_batch_is_not_cut_by_example() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(16, 16, 8), torch.zeros(16, 16).masked_fill(torch.ones(16, 16).triu(1).bool(), -1e4)
    gated = depl0.attach(MaskedTokens(), inputs)
    assert gated.plan.shared_inputs == {1} and "batch of 8" in gated.plan.covered
    one = depl0.cost(MaskedTokens(), (inputs[0][:1], inputs[1]))
    assert depl0.cost(MaskedTokens(), inputs) == one and gated.dense_cost == one
    batch = ExampleInputs.of(inputs).with_shared(gated.plan.shared_inputs)
    [(x, mask), *others] = [piece.args for piece in pieces([batch], 5)]
    assert x.shape == (5, 16, 8) and torch.equal(mask, inputs[1]) and len(others) == 3


# -- several threads ---------------------------------------------------------------------------------------------------


THREADED = ["Residual", "Grouped", "Attention", "Conv1d", "Dropouts", "StochasticDepth", "NoNorm", "Perceptron"]


def process_state() -> dict[str, Any]:
    """Return the state of the process that all threads share."""
    loggers = {name: log for name, log in logging.root.manager.loggerDict.items() if isinstance(log, logging.Logger)}
    return {
        "streams": (id(sys.stdout), id(sys.stderr)),
        "builtins": (len, range, print),
        "logging": (logging.root.manager.disable, logging.root.level, [id(h) for h in logging.root.handlers]),
        "loggers": {name for name, log in loggers.items() if log.disabled or log.filters},
        "warnings": [*warnings.filters],
        "backends": (torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled()),
        "attention": (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
        "defaults": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_cache_enabled()),
        "random": (random.getstate(), torch.get_rng_state().tolist(), np.random.get_state(legacy=True)[1].tolist()),
        "hooks": (len(nn.modules.module._global_forward_hooks), len(nn.modules.module._global_forward_pre_hooks)),
        "checkpoint": torch.utils.checkpoint._checkpoint_without_reentrant_generator,
        "call": (nn.Module.__call__, nn.Module.__getattr__),
    }


def attach_and_extract(host: nn.Module) -> float:
    """Return how far the pruned network is from the gated one."""
    inputs = STRUCTURES[type(host).__name__].inputs
    gated = depl0.attach(host, inputs, rng=torch.Generator().manual_seed(0)).eval()
    gated.fix_gates(random_gates(gated.plan.num_gates))
    compact = gated.extract().eval()
    return distance(call(gated, inputs), call(compact, inputs))


def test_eight_threads_attach_while_a_ninth_works(monkeypatch: pytest.MonkeyPatch) -> None:
    depl0.plan(STRUCTURES["NoNorm"].build(), STRUCTURES["NoNorm"].inputs)  # imports what is imported on first use
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    records: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: records.append(record.getMessage()))
    log = logging.getLogger("torch.of_the_ninth_thread")
    log.addHandler(handler)
    hosts = [STRUCTURES[name].build() for name in THREADED]
    layer, ones = nn.Linear(3, 2), torch.ones(1, 3)
    wanted, done = layer(ones), threading.Event()
    before = process_state()

    def work() -> int:
        number = 0
        while not done.is_set() or not number:
            print("line", number)
            log.error("record %d", number)
            assert type(range(number)) is range  # else nothing could be pickled
            assert torch.equal(layer(ones), wanted)
            done.wait(0.01)
            number += 1
        return number

    with ThreadPoolExecutor(9) as pool:
        working = pool.submit(work)
        try:
            errors = list(pool.map(attach_and_extract, hosts))
        finally:
            done.set()
        count = working.result()
    assert max(errors) < 1e-5
    assert sys.stdout.getvalue().splitlines() == [f"line {n}" for n in range(count)]
    assert records == [f"record {n}" for n in range(count)]
    after = process_state()
    assert {key for key in before if before[key] != after[key]} == set()
