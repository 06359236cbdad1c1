"""A split for data sets that have no official one.

A record is in the test set if the first byte of the SHA-256 of its content is below 51, which is
one in five.  So where it is depends on itself alone: adding or removing another record moves
nothing, and copies of a record stay on the same side.
"""

import hashlib


def in_split(content: bytes, split: str) -> bool:
    return (hashlib.sha256(content).digest()[0] < 51) == (split == "test")
