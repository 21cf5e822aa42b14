import re
import subprocess
import sys
from pathlib import Path

import pytest

from depl0._util.registry import Registry
from depl0.app.data import Data, DataSettings, Target, names, open_data, register, registry
from depl0.errors import InputError


def test_all_data_sets_are_known():
    assert names() == ("cifar100:DIR", "cifar10:DIR", "digits", "fashion-mnist:DIR", "folder:DIR", "mnist:DIR")


@pytest.mark.parametrize(
    ("spec", "text", "hint"),
    [
        ("cifra10:x", "got 'cifra10:x' instead.", "did you mean cifar10:DIR"),
        ("CIFAR10:x", "got 'CIFAR10:x' instead.", "did you mean cifar10:DIR"),
        ("digit", "The data must be one of cifar100:DIR, cifar10:DIR, digits, ", "did you mean digits?"),
        ("fashion_mnist:/data", "got 'fashion_mnist:/data' instead.", "did you mean fashion-mnist:DIR"),
        ("", "got '' instead.", "my_package.data:make"),
        ("no.such.module:make", "or MODULE:FUNCTION, got 'no.such.module:make' instead.", "my_package.data:make"),
        ("cifar10", "The data set 'cifar10' needs the folder of its files, got 'cifar10'", "write cifar10:DIR."),
        ("cifar10:", "The data set 'cifar10' needs the folder of its files, got 'cifar10:'", "write cifar10:DIR."),
    ],
)
def test_wrong_specs_are_refused(spec, text, hint):
    with pytest.raises(InputError, match=re.escape(text)) as error:
        open_data(spec)
    assert hint in error.value.hint


def test_a_new_data_set_is_one_function(monkeypatch):
    digits = open_data("digits")
    calls = []

    def open_mine(path: Path, settings: DataSettings, target: Target) -> Data:
        calls.append((path, settings.batch_size, target.rank, target.world))
        return digits

    monkeypatch.setattr(registry, "DATA", Registry("data set"))  # the real one stays as it is
    assert register("mine")(open_mine) is open_mine
    assert open_data("mine:a/b:c", DataSettings(batch_size=4), rank=1, world=2) is digits
    assert calls == [(Path("a/b:c"), 4, 1, 2)]


def test_a_name_is_taken_once():
    with pytest.raises(InputError, match=r"'digits' is already registered, by depl0\.app\.data\.digits"):
        register("digits")(lambda path, settings, target: None)


def test_importing_loads_nothing_that_only_some_data_sets_need():
    code = (
        "import sys, depl0.app.data; "
        "print([name for name in ('PIL', 'pooch', 'sklearn', 'rich') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
