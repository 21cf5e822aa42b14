"""The examples of docs/data.md, as a user would copy them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from depl0._util.optional import import_torchvision
from depl0.app.data import DataSettings, names, open_data

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
EXAMPLES = {found[0]: found[1] for found in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL)}
SHAPES = {
    "arrays.py": (3, (1, 8, 12)),
    "datasets_with_transforms.py": (3, (3, 16, 12)),
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_gives_batches(name: str, tmp_path: Path) -> None:
    if name == "hugging_face.py":
        pytest.skip("needs a connection; test_own.py has splits of the same form")
    import_torchvision()
    (tmp_path / name).write_text(EXAMPLES[name])
    data = open_data(f"{tmp_path / name}:make", DataSettings(batch_size=16))
    assert (data.info.num_classes, data.info.image_shape) == SHAPES[name]
    for part, size in ((data.train, 64), (data.test, 32)):
        batches = list(part.epoch(0))
        assert sum(len(labels) for _, labels in batches) == size
        assert all(images.is_floating_point() and images.shape[1:] == SHAPES[name][1] for images, _ in batches)


def test_every_data_set_is_listed() -> None:
    assert not [name for name in names() if f"`{name}`" not in PAGE]
