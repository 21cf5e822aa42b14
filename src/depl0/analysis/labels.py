"""Which channels are one and the same: a union-find over integer labels.

Every channel of every tensor carries a label. Joining two labels says "these two channels can only be removed
together"; freezing a label says "this channel can never be removed", and remembers why.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reason:
    """Why a channel is frozen: what happens to it, and at which layer."""

    text: str
    layer: str = ""

    def __str__(self) -> str:
        return f"{self.text} (at {self.layer})" if self.layer else self.text


class Labels:
    """Labels in a union-find. The root of a class is its earliest label, so classes sort by order of execution."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._frozen: dict[int, Reason] = {}
        self._mint_starts: list[int] = []
        self._mint_owners: list[str] = []

    def mint(self, count: int, owner: str) -> Tensor:
        """Return ``count`` new labels that belong to the layer ``owner``."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        self._mint_starts.append(start)
        self._mint_owners.append(owner)
        return torch.arange(start, start + count)

    def mint_frozen(self, count: int, reason: Reason) -> Tensor:
        """Return one new frozen label, repeated ``count`` times."""
        label = self.mint(1, "")
        self.freeze(label, reason)
        return label.expand(count)

    def find(self, label: int) -> int:
        """Return the root of a label's class."""
        parent = self._parent
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    def roots(self, labels: Tensor) -> Tensor:
        """Return the root of every label."""
        return torch.tensor([self.find(label) for label in labels.tolist()], dtype=torch.long)

    def join(self, left: Tensor, right: Tensor) -> None:
        """Say that ``left[i]`` and ``right[i]`` are one channel, for every i."""
        if left is right:
            return
        for a, b in zip(left.tolist(), right.tolist(), strict=True):
            root_a, root_b = self.find(a), self.find(b)
            if root_a == root_b:
                continue
            root, child = min(root_a, root_b), max(root_a, root_b)
            self._parent[child] = root
            reason = self._frozen.pop(child, None)
            if reason is not None:
                self._frozen.setdefault(root, reason)

    def freeze(self, labels: Tensor, reason: Reason) -> None:
        """Say that these channels can never be removed. The first reason given stays."""
        for label in set(labels.tolist()):
            self._frozen.setdefault(self.find(label), reason)

    def reason(self, label: int) -> Reason | None:
        """Return why a label is frozen, or None when it is not."""
        return self._frozen.get(self.find(label))

    def owner(self, label: int) -> str:
        """Return the layer that minted a label."""
        return self._mint_owners[bisect_right(self._mint_starts, label) - 1]
