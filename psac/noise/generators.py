"""Where random bits come from: `SecureGenerator` for privacy, `SeededGenerator` for reproduction.

Both give AES-128 counter-mode keystream from the package `cryptography`.  A stream has a key and a
nonce, so any thread can draw any stream, and none is handed out twice.  Each purpose (noise,
sampling) has its own generator: `spawn`.

>>> len(SecureGenerator().random_bytes(5))
5
"""

import abc
import copy
import hashlib
import operator
import os
from typing import Any, ClassVar, NoReturn

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from psac.errors import warn


class InsecureNoiseWarning(UserWarning):
    """Anyone who knows the seed can compute the noise, so it protects nobody."""


class NoiseGenerator(abc.ABC):
    """A source of streams.  `secure` says whether a run with it can be private."""

    secure: ClassVar[bool]

    @abc.abstractmethod
    def reserve(self, num_streams: int) -> tuple[bytes, int]:
        """The key and the first nonce of `num_streams` streams that no other call will get.

        The key has 16 bytes, and the nonces stay below 2^63.
        """

    @abc.abstractmethod
    def spawn(self, name: str) -> "NoiseGenerator":
        """A generator for another purpose, whose bits are independent of this one's."""

    def random_bytes(self, count: int) -> bytes:
        """`count` uniform bytes, for samplers."""
        stream = bytearray(count + PADDING)
        write_keystream(*self.reserve(1), memoryview(bytes(count)), stream)
        return bytes(stream[:count])


class SecureGenerator(NoiseGenerator):
    """Every call gets a new key from the operating system, and drops it when it returns.

    Guarantees: no two generators, calls or forked processes share a stream; there is no state that
    could be saved, stolen or rewound: saving, pickling and copying raise TypeError.
    """

    secure = True

    def reserve(self, num_streams: int) -> tuple[bytes, int]:
        return os.urandom(16), 0

    def spawn(self, name: str) -> "SecureGenerator":
        return SecureGenerator()

    def state_dict(self) -> NoReturn:
        raise TypeError(
            "the state of a SecureGenerator is never saved: anyone who had it could compute the "
            "noise and subtract it. A resumed run makes a new SecureGenerator()."
        )

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        self.state_dict()

    def __reduce__(self) -> NoReturn:  # Serves pickle, torch.save, copy and deepcopy.
        self.state_dict()


class SeededGenerator(NoiseGenerator):
    """Reproducible noise for tests and research.  It is NOT private, and warns so.

    Guarantees: the state is the seed, the names it was spawned by and a counter.  The same seed,
    names and sequence of calls give the same bits for any number of threads, resumed or not.  The
    same name spawns the same stream again; different names, independent ones.
    """

    secure = False

    def __init__(self, seed: int) -> None:
        try:
            number = operator.index(seed)
        except TypeError as error:
            raise TypeError(f"seed is {seed!r}: it must be an integer, or None.") from error
        warn(
            f"SeededGenerator({seed}) is reproducible: anyone who knows the seed can subtract the "
            "noise, so the run is not private. Use SecureGenerator() for a private run.",
            InsecureNoiseWarning,
        )
        self._set(number, (), 0)

    def _set(self, seed: int, names: tuple[str, ...], counter: int) -> None:
        self.seed, self.names, self.counter = seed, names, counter
        text = repr((seed, names)).encode()
        self._key = hashlib.blake2b(text, digest_size=16, person=b"psac").digest()

    def reserve(self, num_streams: int) -> tuple[bytes, int]:
        self.counter += num_streams
        return self._key, self.counter - num_streams

    def spawn(self, name: str) -> "SeededGenerator":
        child = copy.copy(self)
        child._set(self.seed, (*self.names, str(name)), 0)
        return child

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "names": list(self.names), "counter": self.counter}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if tuple(state["names"]) != self.names:
            raise ValueError(
                f"this state belongs to the stream {list(state['names'])}, not to "
                f"{list(self.names)}: two purposes would share one stream. Load it into its own."
            )
        self._set(state["seed"], self.names, state["counter"])


def refuse_other_generators(generator: object) -> None:
    if not isinstance(generator, NoiseGenerator):
        raise TypeError(
            f"generator is {generator!r}: pass SecureGenerator() or SeededGenerator(0)."
        )


PADDING = 16  # `update_into` needs that much room beyond the data.


def write_keystream(key: bytes, nonce: int, zeros: memoryview, stream: bytearray) -> None:
    """AES-CTR keystream, as much as there are zeros, from counter block (nonce, 2) on.

    It is taken as the ciphertext of zeros under GCM, which is counter mode plus a tag (unused):
    OpenSSL has the wide AES instructions there, at twice the speed of its plain counter mode.
    """
    mode = modes.GCM(nonce.to_bytes(12, "big"))
    Cipher(algorithms.AES(key), mode).encryptor().update_into(zeros, stream)
