"""How generators and presets are named, made and checked."""

import dataclasses
import importlib
import math
import re
import typing

import pytest
import torch

from depl0._util.registry import Registry
from depl0.errors import InputError
from depl0.gates.generators import (
    GENERATORS,
    PRESETS,
    BoundedGenerator,
    Generator,
    Preset,
    base,
    fc,
    make_generator,
    register,
)


def test_all_generators_of_the_paper_are_known():
    of_the_paper = {"conv1d", "conv1d-deep", "fc", "fc-relu", "fc-tanh", "independent", "lstm-shared"}
    controls = {"bias"}
    assert set(GENERATORS) == {*of_the_paper, *controls, "lstm"}


def test_a_generator_is_made_by_its_name():
    generator = make_generator("fc", [2, 3])
    assert type(generator) is GENERATORS["fc"]
    assert (generator.sizes, generator.direction, generator.preset) == ((2, 3), "forward", PRESETS["default"])


def test_a_preset_of_ones_own_is_taken_as_it_is():
    mine = Preset(name="mine", bound=5.0, feed="scaled", mean_input=True, initial_weight=0.1, start=2.0)
    generator = make_generator("fc", [2, 3], preset=mine)
    assert generator.preset is mine
    torch.testing.assert_close(generator(), torch.full((5,), 2.0))


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        (
            {"name": "fc-relo"},
            "The generator must be one of 'bias', 'conv1d', 'conv1d-deep', 'fc', ",
            "did you mean fc-relu",
        ),
        ({"name": "transformer"}, "got 'transformer' instead.", "'fc' is the paper's generator"),
        ({"direction": "foward"}, "The direction must be one of 'forward', 'backward', got 'foward'", "forward?"),
        ({"direction": "up"}, "got 'up' instead.", "'forward' walks the groups from first to last."),
        (
            {"preset": "papers"},
            "The preset must be one of 'default', 'paper', 'reference', 'reference-vgg16', got",
            "did you mean paper?",
        ),
        ({"preset": "x"}, "got 'x' instead.", "'default' trains best"),
        ({"sizes": []}, "one or more positive integers, got [] instead.", "leave it out"),
        ({"sizes": [3, 0]}, "one or more positive integers, got [3, 0] instead.", "leave it out"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text, hint):
    with pytest.raises(InputError, match=re.escape(text)) as error:
        make_generator(**{"name": "fc", "sizes": [2, 3], **arguments})
    assert hint in error.value.hint


def test_a_new_generator_is_one_class(monkeypatch):
    @typing.final
    class Constant(BoundedGenerator):
        def build(self, rng):
            self.number = torch.nn.Parameter(torch.zeros(sum(self.sizes)))

        def pre_activation(self, group, previous, memory):
            return self.bias(group), memory

        def bias(self, group):
            return self.number.narrow(0, sum(self.sizes[:group]), self.sizes[group])

    monkeypatch.setattr(base, "GENERATORS", Registry("generator"))  # the real one stays as it is
    assert register("constant")(Constant) is Constant
    torch.testing.assert_close(make_generator("constant", [2, 1], start=1.0)(), torch.ones(3))


def test_registering_is_checked():
    class Unfinished(Generator):
        pass

    with pytest.raises(InputError, match="'unfinished' cannot be registered: Unfinished lacks bias, build, start_from"):
        register("unfinished")(Unfinished)
    with pytest.raises(InputError, match=r"'fc' is already registered, by depl0\.gates\.generators\.fc\.FC"):
        register("fc")(GENERATORS["lstm"])
    assert "unfinished" not in GENERATORS


def test_a_module_can_be_reloaded():
    before, members = dict(GENERATORS), dict(vars(fc))
    try:
        importlib.reload(fc)
        assert GENERATORS["fc"] is not before["fc"]
    finally:
        GENERATORS._things.update(before)
        vars(fc).update(members)


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


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("bound", 0.0, "above 0"),
        ("bound", math.nan, "above 0"),
        ("feed", "gates", "'log_alpha' or 'scaled'"),
        ("initial_weight", -0.1, "None or at least 0"),
        ("start", 6.9, "None or between -6.77 and 6.77 (0.98 of the bound)"),
        ("bias_mean", math.nan, "a finite number"),
        ("bias_std", -1.0, "at least 0"),
        ("carry_gradient", 1.5, "between 0 and 1"),
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
