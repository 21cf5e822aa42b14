import sys

import pytest
import torch

from depl0.app.data import DataSettings, open_data
from depl0.errors import InputError, NotInstalledError


def test_the_split_is_fixed_and_fair():
    data = open_data("digits", DataSettings(eval_batch_size=1000, mean=(0,), std=(1 / 255,)))
    ((images, labels),) = data.test.epoch(0)
    assert (data.info.train_size, data.info.test_size) == (1437, 360)
    counts = torch.bincount(labels)
    assert counts.min() >= 35
    assert counts.max() <= 37
    assert labels[:8].tolist() == [8, 6, 9, 9, 1, 1, 0, 1]
    assert images.max().round() == 255


def test_the_normalisation_is_that_of_the_training_images():
    data = open_data("digits", DataSettings(batch_size=1437))
    ((images, _),) = data.train.epoch(0)
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(NotInstalledError, match="scikit-learn is needed for the digits, but not installed") as error:
        open_data("digits")
    assert error.value.hint == "pip install 'depl0[cli]'"


def test_no_folder_is_taken():
    with pytest.raises(InputError, match="'digits' is bundled and takes no folder, got 'digits:x'"):
        open_data("digits:x")
