"""Data that prove nothing are announced."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from depl0.app.data import open_data
from depl0.app.recipes.sanity import warnings_for


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"num_classes": 1}, "one class: every network gets 100 %"),
        ({"train_size": 1}, "one training image"),
        ({"test_size": 1}, "one test image: the accuracy can only be 0 or 100 %"),
        (
            {"num_classes": 3, "class_counts": ((5, 5, 5), (2, 0, 2)), "class_names": ("ant", "bee", "cat")},
            "1 of 3 classes have no test images and are not part of the accuracy: bee.",
        ),
        (
            {"num_classes": 9, "class_counts": ((5, 5) + (0,) * 7, (1,) * 9), "class_names": None},
            "7 of 9 classes have no training images and cannot be learned: 2, 3, 4, 5, 6 and 2 more.",
        ),
    ],
)
def test_data_that_prove_nothing(fields: dict[str, Any], text: str) -> None:
    info = open_data("digits").info
    assert list(warnings_for(info)) == []
    (found,) = warnings_for(dataclasses.replace(info, **fields))
    assert text in found
