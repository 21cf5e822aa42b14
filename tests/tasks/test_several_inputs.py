"""Networks with several inputs and heads, from the shell: the code of docs/guides/several-inputs.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from depl0.app.cli.app import main
from depl0.app.tasks import find_task
from depl0.errors import InputError

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "several-inputs.md").read_text()
COMMANDS = re.findall(r"^depl0 (.*)$", PAGE.replace("\\\n", ""), flags=re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "two.py").write_text(re.search(r"```python\n# two\.py\n(.*?)```", PAGE, flags=re.DOTALL)[1])  # type: ignore[index]
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_plan_counts_both_branches(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(COMMANDS[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["input_shapes"] == [[3, 16, 16], [4]]
    assert {"image.0", "state.0"} <= {layer for group in found["groups"] for layer in group["layers"]}
    assert main(shlex.split(COMMANDS[0])) == 0
    assert "two.py:net on 3×16×16 and 4" in capsys.readouterr().out


def test_a_run_prunes_the_network_and_keeps_every_head(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*shlex.split(COMMANDS[1]), "--out", "run"]) == 0, capsys.readouterr().err
    summary = json.loads((here / "run" / "summary.json").read_text())
    assert 0.4 < summary["budget_reached"] <= 0.5
    assert summary["compact"]["accuracy"] > 60
    assert summary["certificate"]["max_error"] < 1e-9
    capsys.readouterr()
    assert main(["eval", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == summary["compact"]["accuracy"]


HEADS = {"kind": "classification", "place": "0.5*regression", "judge": "kind"}


@pytest.mark.parametrize("form", [dict, tuple])
def test_losses_are_added_and_one_head_is_the_judge(form: type) -> None:
    task = find_task("heads", **HEADS)
    scores, numbers = torch.randn(6, 3, requires_grad=True), torch.randn(6, 2)
    labels, places = torch.randint(3, (6,)), torch.randn(6, 2)
    outputs, targets = {"kind": scores, "place": numbers}, {"kind": labels, "place": places}
    pair = (outputs, targets) if form is dict else (tuple(outputs.values()), tuple(targets.values()))
    first, second = find_task("classification"), find_task("regression")
    expected = first.loss(scores, labels) + 0.5 * second.loss(numbers, places)
    torch.testing.assert_close(task.loss(*pair), expected)
    assert task.value(task.measure(*pair)) == first.value(first.measure(scores, labels))
    assert task.distills and float(task.distill(pair[0], pair[0], 2.0).detach()) >= 0


def test_outputs_of_another_form_are_named() -> None:
    task = find_task("heads", **HEADS)
    with pytest.raises(
        InputError, match=r"needs outputs that are a dict with kind, place, or a tuple .*, got a Tensor"
    ):
        task.loss(torch.zeros(2, 3), {})
    with pytest.raises(InputError, match=r"needs targets that are a dict with kind, place, .* got a dict of kind"):
        task.loss((torch.zeros(2, 3), torch.zeros(2, 2)), {"kind": torch.zeros(2)})
