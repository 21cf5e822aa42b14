"""Networks that are attached in several threads: nothing in the process changes, other threads are not disturbed."""

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
import torch.utils.checkpoint
from torch import nn

import depl0
from tests.networks.structures import STRUCTURES
from tests.support.compare import call, distance, random_gates

NAMES = ["Residual", "Grouped", "Attention", "Conv1d", "Dropouts", "StochasticDepth", "NoNorm", "Perceptron"]


def process_state() -> dict[str, Any]:
    """Return what a thread could change for all others."""
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
    hosts = [STRUCTURES[name].build() for name in NAMES]
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
