"""The checksum of two files that belong together: a JSON header, and the bytes of its tensors."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def checksum(header: dict[str, Any], values: bytes) -> str:
    """Return the SHA-256 of both files: of the header's other fields in a canonical form, and of the values.

    >>> checksum({"step": 3, "sha256": "not counted"}, b"values") == checksum({"step": 3}, b"values")
    True
    """
    fields = {key: value for key, value in header.items() if key != "sha256"}
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(hashlib.sha256(canonical).digest() + hashlib.sha256(values).digest()).hexdigest()
