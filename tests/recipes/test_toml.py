"""Recipes go to TOML and back unchanged; what is wrong in a file is named."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depl0.app.checks import Check, Either, Flag, ListOf, Maybe, Named, Number, OneOf, Text, Whole
from depl0.app.methods import METHODS, Learned
from depl0.app.recipes import SECTIONS, Recipe, get, parse_recipe, read_recipe, task_of, with_overrides, write_recipe
from depl0.app.recipes.section import check_of
from depl0.app.tasks import find_task
from depl0.errors import InputError

SMALL = """
name = "small"
[target]
budget = 0.5
[search]
epochs = 3
[weight_optimizer]
lr = 0.1
"""

TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1)


def values(check: Check) -> st.SearchStrategy:
    """Draw what a check allows."""
    match check:
        case Whole():
            return st.integers(check.at_least, check.at_most if check.at_most is not None else 2**62)
        case Number():
            bounds = [bound for bound in (check.at_least, check.above) if bound is not None]
            tops = [bound for bound in (check.at_most, check.below) if bound is not None]
            return st.floats(*(bounds or [None]), *(tops or [None]), allow_nan=False, allow_infinity=False).filter(
                check.accepts
            )
        case Named():
            names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(str.isidentifier)
            return st.dictionaries(names, values(check.entry), max_size=3)
        case Flag():
            return st.booleans()
        case OneOf():
            return st.sampled_from(check._known())
        case Text():
            return TEXT
        case Maybe():
            return st.none() | values(check.entry)
        case Either():
            return values(check.first) | values(check.second)
        case ListOf(rising=True):
            return st.sets(values(check.entry), min_size=1, max_size=4).map(sorted)
        case ListOf():
            size = (check.length, check.length) if check.length is not None else (check.at_least, 4)
            unique = check.distinct
            return st.lists(values(check.entry), min_size=size[0], max_size=size[1], unique=unique)
    raise AssertionError(check)


def fit_together(title: str, drawn: dict) -> dict:
    """Mend what single fields cannot know."""
    match title:
        case "model":
            drawn["spec"] = f"{drawn['spec']}:make"
            drawn["pretrained"] = drawn["pretrained"] and not drawn["weights"]
        case "task":
            drawn["spec"] = f"{drawn['spec']}:Name"
        case "run":
            drawn["device"] = "cuda:1" if len(drawn["device"]) > 1 else "cpu"
        case "data" if drawn["mean"] is None or drawn["std"] is None:
            drawn["mean"] = drawn["std"] = None
        case "data":
            drawn["std"] = [drawn["std"][0]] * len(drawn["mean"])
        case "gates":
            drawn["generator"] = "independent" if drawn["method"] == "l0-hc" else drawn["generator"]
            drawn["start"] = None if drawn["start"] is None or drawn["preset"] != "default" else drawn["start"] % 6
        case "target" if drawn["budget"] is None and drawn["penalty_weight"] is None:
            drawn["budget"] = 0.3
        case "target" if drawn["budget"] is not None:
            drawn["penalty_weight"] = None
        case "search":
            drawn["ramp"] *= 1 - drawn["gate_warmup"]
        case "weight_optimizer" if drawn["momentum"] == 0:
            drawn["nesterov"] = False
    return drawn


def sections(title: str) -> st.SearchStrategy:
    kind = SECTIONS[title]
    fields = {entry.name: values(check_of(entry)) for entry in dataclasses.fields(kind)}
    return st.fixed_dictionaries(fields).map(partial(fit_together, title)).map(lambda drawn: kind(**drawn))


def can_be(parts: dict) -> bool:
    """Tell whether sections fit together: only learned gates do without a budget, and who distils needs a teacher."""
    search, gates, has_budget = parts["search"], parts["gates"], parts["target"].budget is not None
    taught = (not search.distill or parts["model"].weights) and not (search.distill_blocks and parts["run"].compile)
    depends = gates.dependency == 0 or (has_budget and gates.conditioning == "gates")
    return taught and depends and (has_budget or isinstance(METHODS[gates.method], Learned))


PARTS = st.fixed_dictionaries({"name": TEXT, **{title: sections(title) for title in SECTIONS}})
RECIPES = PARTS.filter(can_be).map(lambda parts: Recipe(**parts))


@settings(max_examples=60)
@given(RECIPES)
def test_any_recipe_reads_back_as_it_was(recipe):
    text = write_recipe(recipe)
    again = parse_recipe(text)
    assert again == recipe
    assert write_recipe(again) == text
    kinds = [{f.name: type(getattr(s, f.name)) for f in dataclasses.fields(s)} for s in (again.data, recipe.data)]
    assert kinds[0] == kinds[1]


@settings(max_examples=40)
@given(RECIPES, st.data())
def test_any_field_can_be_set_to_what_another_recipe_has(recipe, data):
    other = with_overrides(get("digits"), {"model.weights": "dense.safetensors"})
    names = ["data", "gates", "search", "weight_optimizer", "gate_optimizer", "finetune", "run"]
    title = data.draw(st.sampled_from(names))
    changes = {
        f"{title}.{f.name}": getattr(getattr(recipe, title), f.name) for f in dataclasses.fields(SECTIONS[title])
    }
    assert with_overrides(other, changes) == dataclasses.replace(other, **{title: getattr(recipe, title)})


def test_a_file_needs_only_what_has_no_default(tmp_path):
    path = tmp_path / "small.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())  # as a Windows editor saves it
    recipe = read_recipe(path)
    assert recipe == read_recipe(str(path)) == parse_recipe(SMALL)
    assert (recipe.name, recipe.search.epochs, recipe.target.budget, recipe.weight_optimizer.lr) == (
        "small",
        3,
        0.5,
        0.1,
    )


def test_none_is_written_as_nothing():
    text = write_recipe(parse_recipe(SMALL))
    for absent in ("mean", "std", "image_size", "start", "penalty_weight", "clip_norm", "ema_decay"):
        assert f"{absent} =" not in text
    assert "milestones = []" in text
    assert 'groups = "all"' in text


ERRORS = [
    ("", "recipe fields target.budget and target.penalty_weight are both left out; exactly one must be set."),
    (
        SMALL.replace("name =", "nmae ="),
        "recipe has no field or section nmae.\nhint: did you mean name?",
    ),
    (
        SMALL.replace("[search]", "[serch]"),
        "recipe has no field or section serch.\nhint: did you mean [search]?",
    ),
    (
        SMALL.replace("epochs", "epoch"),
        "recipe has no field or section search.epoch.\nhint: did you mean search.epochs?",
    ),
    (
        SMALL.replace("epochs = 3", "epochs = 3\nsmoothing = 0.1"),
        "recipe has no field or section search.smoothing.\nhint: did you mean search.label_smoothing?",
    ),
    (
        SMALL.replace("epochs = 3", "epochs = 3\nlr = 0.1"),
        "recipe has no field or section search.lr.\n"
        "hint: did you mean weight_optimizer.lr or gate_optimizer.lr or finetune.lr?",
    ),
    (
        "epochs = 3\n" + SMALL,
        "recipe has no field or section epochs.\nhint: did you mean search.epochs or finetune.epochs?",
    ),
    (
        "zebra = 3\n" + SMALL,
        "recipe has no field or section zebra.\nhint: the sections are model, data, task, gates, target, "
        "search, weight_optimizer, gate_optimizer, recovery, finetune, deploy, run.",
    ),
    (
        SMALL + "[target.zebra]",
        "recipe has no field or section target.zebra.\n"
        "hint: the fields of [target] are budget, of, round_to, penalty_weight, penalty, penalty_scale, remove_blocks.",
    ),
    (
        "search = 5\n" + SMALL.replace("[search]\nepochs = 3\n", ""),
        "recipe section search must be a table, got 5 instead.\nhint: write [search] and its fields below it.",
    ),
    (
        SMALL.replace("epochs = 3", ""),
        "recipe field search.epochs is missing; it must be a whole number of at least 0.",
    ),
    (SMALL.replace("lr = 0.1", ""), "recipe field weight_optimizer.lr is missing; it must be a number above 0."),
    (
        SMALL.replace('name = "small"', ""),
        "recipe field name is missing; it must be a line of text that is not empty.",
    ),
    (SMALL.replace('"small"', "5"), "recipe field name must be a line of text that is not empty, got 5 instead."),
    (
        SMALL.replace("= 3", '= "3"'),
        "recipe field search.epochs must be a whole number of at least 0, got '3' instead.",
    ),
    (SMALL.replace("0.1", "nan"), "recipe field weight_optimizer.lr must be a number above 0, got nan instead."),
    (
        SMALL.replace("= 3", "= 1979-05-27"),
        "recipe field search.epochs must be a whole number of at least 0, got datetime.date(1979, 5, 27) instead.",
    ),
    (SMALL.replace("epochs = 3", "epochs 3"), "recipe is no valid TOML: Expected '=' after a key in a key/value pair"),
    (SMALL + 'x = "', "recipe is no valid TOML: "),
    (SMALL.replace("= 3", "= " + "3" * 5000), "recipe is no valid TOML: Exceeds the limit"),
    (SMALL.replace("= 3", "= " + "[" * 100_000), "recipe is no valid TOML: "),
]


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_what_is_wrong_in_a_file_is_named(text, message):
    with pytest.raises(InputError) as caught:
        parse_recipe(text)
    assert str(caught.value).startswith(message)


def test_a_syntax_error_says_file_and_line(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("name = 'x'\n\n[search\nepochs = 3\n")
    with pytest.raises(InputError, match=r"recipe file .*mine\.toml is no valid TOML: .*at line 3, column 8"):
        read_recipe(path)
    path.write_text("name = 'x'\n[search]\nepochs =")
    with pytest.raises(InputError, match=r"at line 3, the end of the document"):
        read_recipe(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml does not exist\.\nhint: depl0 recipes lists"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(InputError, match=r"is a folder; a \.toml file was expected"):
        read_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes('name = "é"'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.toml is no text in UTF-8"):
        read_recipe(tmp_path / "latin.toml")
    with pytest.raises(InputError, match="cannot be read: embedded null byte"):
        read_recipe("a\0b")


@pytest.mark.parametrize(
    ("key", "value", "stored"),
    [
        ("search.epochs", "20", 20),
        ("search.epochs", 20, 20),
        ("weight_optimizer.lr", "1", 1.0),
        ("weight_optimizer.lr", "5e-3", 0.005),
        ("weight_optimizer.nesterov", "true", True),
        ("weight_optimizer.milestones", "[2, 4]", (2, 4)),
        ("gates.groups", "inner", "inner"),
        ("gates.groups", '"inner"', "inner"),
        ("gates.groups", '["layer1.*", "-conv1"]', ("layer1.*", "-conv1")),
        ("data.augment", "none", "none"),
        ("data.spec", "folder:/data/2024", "folder:/data/2024"),
        ("model.weights", "1e5", "1e5"),
        ("model.weights", "2024-01-01", "2024-01-01"),
        ("model.weights", "true", "true"),
        ("model.weights", "a#b.pt", "a#b.pt"),
        ("model.weights", "", ""),
        ("search.clip_norm", "1.5", 1.5),
        ("search.clip_norm", "none", None),
        ("search.clip_norm", None, None),
        ("run.trackers", "[]", ()),
        ("name", "12", "12"),
    ],
)
def test_overrides(key, value, stored):
    before = get("digits")
    after = with_overrides(before, {key: value})
    section, dot, name = key.partition(".")
    found = getattr(getattr(after, section), name) if dot else getattr(after, key)
    assert found == stored
    assert type(found) is type(stored)
    assert before == get("digits")


def test_overrides_are_applied_together_and_change_nothing_else():
    before = get("digits")
    after = with_overrides(before, {"gates.method": "l0-hc", "gates.generator": "independent", "run.seed": "7"})
    assert after.gates == dataclasses.replace(before.gates, method="l0-hc", generator="independent")
    assert after.run.seed == 7
    assert dataclasses.replace(after, gates=before.gates, run=before.run) == before
    assert with_overrides(before, {}) == before


def test_a_budget_takes_the_place_of_a_penalty_weight_and_the_other_way():
    penalised = with_overrides(get("digits"), {"target.penalty_weight": "1e-6"})
    assert (penalised.target.budget, penalised.target.penalty_weight) == (None, 1e-6)
    budgeted = with_overrides(penalised, {"target.budget": 0.5, "target.of": "params"})
    assert (budgeted.target.budget, budgeted.target.penalty_weight, budgeted.target.of) == (0.5, None, "params")
    with pytest.raises(InputError, match="are both set"):
        with_overrides(budgeted, {"target.budget": 0.5, "target.penalty_weight": 1e-6})
    with pytest.raises(InputError, match="are both left out"):
        with_overrides(budgeted, {"target.budget": "none"})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "search.epcohs",
            "3",
            "recipe has no field or section search.epcohs.\nhint: did you mean search.epochs?",
        ),
        (
            "epochs",
            "3",
            "recipe has no field or section epochs.\nhint: did you mean search.epochs or finetune.epochs?",
        ),
        ("search", "3", "recipe has no field or section search."),
        ("serch.epochs", "3", "recipe has no field or section serch.epochs.\nhint: did you mean search.epochs"),
        (".", "3", "recipe has no field or section .."),
        (
            "search.epochs",
            "-1",
            "recipe field search.epochs must be a whole number of at least 0, got -1 instead.",
        ),
        (
            "search.epochs",
            "many",
            "recipe field search.epochs must be a whole number of at least 0, got 'many' instead.",
        ),
        (
            "search.epochs",
            "1\nramp = 0.1",
            "recipe field search.epochs must be a whole number of at least 0, got '1\\nramp = 0.1' instead.",
        ),
        ("search.epochs", "none", "recipe field search.epochs must be"),
    ],
)
def test_wrong_overrides(key, value, message):
    with pytest.raises(InputError) as caught:
        with_overrides(get("digits"), {key: value})
    assert str(caught.value).startswith(message)


def test_a_file_from_before_there_were_tasks_is_of_a_classifier():
    assert "[task]" not in SMALL
    recipe = parse_recipe(SMALL)
    assert (recipe.task.spec, recipe.task.settings) == ("classification", None)
    assert task_of(recipe).metric.name == "accuracy"


def test_the_task_and_its_settings_are_written_as_a_table():
    text = SMALL + '[task]\nspec = "segmentation"\nsettings = {ignore_index = 0}\n'
    recipe = parse_recipe(text)
    assert task_of(recipe) == find_task("segmentation", ignore_index=0)
    assert '[task]\nspec = "segmentation"\n\n[task.settings]\nignore_index = 0\n' in write_recipe(recipe)
    assert parse_recipe(write_recipe(recipe)) == recipe
    assert hash(recipe)
    changed = with_overrides(recipe, {"task.settings": "{ignore_index = 3}"})
    assert task_of(changed) == find_task("segmentation", ignore_index=3)
    assert with_overrides(recipe, {"task.settings": "none"}).task.settings is None


def test_label_smoothing_goes_to_tasks_that_have_labels():
    smooth = with_overrides(get("digits"), {"search.label_smoothing": 0.1})
    assert task_of(smooth) == find_task("classification", label_smoothing=0.1)
    assert task_of(with_overrides(smooth, {"task.spec": "segmentation"})).label_smoothing == 0.1
    with pytest.raises(InputError, match=r"label_smoothing must be 0 where task\.spec is 'regression', got 0\.1"):
        task_of(with_overrides(smooth, {"task.spec": "regression"}))
    with pytest.raises(InputError, match=r"cannot have label_smoothing\.\nhint: set search\.label_smoothing"):
        task_of(with_overrides(get("digits"), {"task.settings": "{label_smoothing = 0.1}"}))


def test_only_tasks_that_say_how_are_distilled(tmp_path):
    (tmp_path / "own.py").write_text(
        "from depl0.app.tasks import Metric, Task\n"
        "class Own(Task):\n"
        "    metric = Metric('score')\n"
        "    def loss(self, outputs, targets): return outputs.sum()\n"
        "    def measure(self, outputs, targets): return outputs.sum().view(1)\n"
        "    def value(self, sums): return float(sums[0])\n"
    )
    taught = with_overrides(get("digits"), {"model.weights": "w.pt", "search.distill": 0.5})
    assert task_of(taught).distills
    with pytest.raises(InputError, match=r"search\.distill must be 0 where task\.spec is '.*own.py:Own', got 0.5"):
        task_of(with_overrides(taught, {"task.spec": f"{tmp_path / 'own.py'}:Own"}))
