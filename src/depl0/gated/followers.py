"""Those who hold parameters of a host, and have to know when it is replaced by a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from depl0.surgery.shrink import Narrowed


class Followers(list[Callable[[Narrowed], None]]):
    """Who is told when a host becomes smaller. A copy of a network (a running mean) has none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Followers:
        return Followers()
