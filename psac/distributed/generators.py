"""One secret key, which all workers expand to the same bits.

    secret --chain--> key, key, key, ...        a name and a key give a spawned generator its chain

Guarantees:

- Workers that took the same secret and make the same calls get the same bits; whoever does not have
  the secret cannot tell them from the bits of `SecureGenerator`.
- A key is used once, and earlier keys cannot be computed from what is in memory: each link of the
  chain is a hash (BLAKE2b) of the one before, which is dropped.
- Nothing is ever saved: a resumed run takes a new secret.

Left to others: that the secret comes from the operating system, is as new as the pass, and reaches
workers alone (`psac.distributed.workers`); that all of them are at the same link (`position`, which
they compare).

>>> secret = bytes(32)
>>> one, other = SharedGenerator(secret), SharedGenerator(secret)
>>> one.spawn("noise").random_bytes(4) == other.spawn("noise").random_bytes(4)
True
>>> one.random_bytes(4) == one.random_bytes(4)
False
"""

from __future__ import annotations

import hashlib
import weakref

from psac.noise.generators import SecureGenerator

KEY_BYTES = 32


class SharedGenerator(SecureGenerator):
    """A `SecureGenerator` whose keys follow from one secret, and not from the system each time."""

    def __init__(self, secret: bytes) -> None:
        self._link = secret
        self._spawned: weakref.WeakKeyDictionary[SharedGenerator, str] = weakref.WeakKeyDictionary()

    def reserve(self, num_streams: int) -> tuple[bytes, int]:
        return self._next()[:16], 0

    def spawn(self, name: str) -> SharedGenerator:
        """Each call gives another generator, whatever its name: it uses up a key."""
        child = SharedGenerator(derived(self._next(), name))
        self._spawned[child] = name
        return child

    def take(self, secret: bytes) -> None:
        """From here on this one and those that it has spawned follow from another secret."""
        self._link = secret
        for child, name in list(self._spawned.items()):
            child.take(derived(secret, name))

    def position(self) -> str:
        """Equal on two workers if and only if the same bits come next; it tells nothing of them."""
        return derived(self._link, "position").hex()

    def _next(self) -> bytes:
        """A key, used once."""
        digest = hashlib.blake2b(self._link, person=b"psac chain").digest()
        self._link, key = digest[:KEY_BYTES], digest[KEY_BYTES:]
        return key


def derived(key: bytes, name: str) -> bytes:
    """A key for one purpose."""
    return hashlib.blake2b(name.encode(), key=key, digest_size=KEY_BYTES).digest()
