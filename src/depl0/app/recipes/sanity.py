"""Warnings about data on which a run succeeds although its result is meaningless."""

from __future__ import annotations

from collections.abc import Iterator

from depl0.app.data.base import DataInfo


def warnings_for(info: DataInfo) -> Iterator[str]:
    """Yield the reasons why the result of a run on this data would be meaningless, one sentence each."""
    if info.num_classes == 1:
        yield "the data has one class: every network gets 100 %."
    if info.train_size == 1:
        yield "the data has one training image: there is nothing to learn from it."
    if info.test_size == 1:
        yield "the data has one test image: the accuracy can only be 0 or 100 %."
    if info.class_counts is None or info.num_classes in (None, 1):
        return
    names = info.class_names or tuple(map(str, range(len(info.class_counts[0]))))
    parts = (("training", "cannot be learned"), ("test", "are not part of the accuracy"))
    for (part, meaning), counts in zip(parts, info.class_counts, strict=True):
        empty = [name for name, count in zip(names, counts, strict=True) if count == 0]
        if empty:
            more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
            shown = ", ".join(empty[:5]) + more
            yield f"{len(empty)} of {len(counts)} classes have no {part} images and {meaning}: {shown}."
