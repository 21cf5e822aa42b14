import dataclasses
import math
import re

import pytest

from depl0.errors import InputError
from depl0.gates.generators import PRESETS, Preset


def test_the_presets_hold_their_constants():
    paper, reference, default = PRESETS["paper"], PRESETS["reference"], PRESETS["default"]
    assert (paper.bound, paper.feed, paper.mean_input, paper.carry_gradient) == (10.0, "log_alpha", False, 1.0)
    assert (paper.bias_mean, paper.bias_std, paper.start, paper.initial_weight) == (3.0, 0.01, None, None)
    assert dataclasses.replace(reference, name="paper", bound=10.0) == paper
    assert reference.bound == pytest.approx(math.log(100))
    assert default.bound == pytest.approx(math.log(1000))
    assert (default.feed, default.mean_input, default.carry_gradient, default.start) == ("scaled", True, 0.0, 3.0)
    assert all(preset.name == name for name, preset in PRESETS.items())


def test_presets_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["paper"].bound = 5.0
    with pytest.raises(TypeError):
        PRESETS["mine"] = PRESETS["paper"]


def test_with_start_changes_only_the_start():
    changed = PRESETS["default"].with_start(4.5)
    assert changed.start == 4.5
    assert dataclasses.replace(changed, start=3.0) == PRESETS["default"]


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("bound", 0.0, "above 0"),
        ("bound", -1.0, "above 0"),
        ("bound", math.inf, "above 0"),
        ("bound", math.nan, "above 0"),
        ("feed", "gates", "'log_alpha' or 'scaled'"),
        ("initial_weight", -0.1, "None or at least 0"),
        ("start", 6.9, "None or between -6.77 and 6.77 (0.98 of the bound)"),
        ("start", math.nan, "None or between -6.77 and 6.77 (0.98 of the bound)"),
        ("bias_mean", math.nan, "a finite number"),
        ("bias_std", -1.0, "at least 0"),
        ("carry_gradient", 1.5, "between 0 and 1"),
        ("carry_gradient", -0.1, "between 0 and 1"),
    ],
)
def test_wrong_values_are_refused_with_field_value_and_what_is_allowed(field, value, allowed):
    text = f"The '{field}' of a Preset must be {allowed}, got {value!r} instead."
    with pytest.raises(InputError, match=re.escape(text)):
        dataclasses.replace(PRESETS["default"], **{field: value})


@pytest.mark.parametrize("name", ["paper", "reference"])
def test_a_published_preset_has_no_start(name):
    with pytest.raises(InputError, match=rf"Preset '{name}' has no start.*\nhint: .*default.*start_from"):
        PRESETS[name].with_start(4.0)


def test_a_preset_of_ones_own():
    mine = Preset(name="mine", bound=5.0, feed="scaled", mean_input=True, initial_weight=0.1, start=2.0)
    assert mine.carry_gradient == 1.0
