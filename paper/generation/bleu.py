"""BLEU of a corpus (Papineni et al. 2002), up to 4 words, with several references each.

    BLEU = exp(min(0, 1 - r / c)) * (p1 p2 p3 p4)^(1/4)

p_n is the share of the n-grams of the candidates that occur in a reference, each counted at most as
often as in the reference that has it most often; c is the number of words of the candidates, r that
of the closest references.  Words are lower-case, punctuation is apart.

>>> bleu(["The cat sat on the mat."], [["the cat sat on the mat ."]])
1.0
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

LONGEST = 4


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def bleu(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """From 0 to 1."""
    found, total = [0] * LONGEST, [0] * LONGEST
    length = closest = 0
    for candidate, texts in zip(candidates, references, strict=True):
        own, others = words(candidate), [words(text) for text in texts]
        length += len(own)
        closest += min((abs(len(o) - len(own)), len(o)) for o in others)[1]
        for n in range(1, LONGEST + 1):
            counts = _grams(own, n)
            most: Counter = Counter()
            for other in others:
                most |= _grams(other, n)
            found[n - 1] += sum((counts & most).values())
            total[n - 1] += sum(counts.values())
    if not all(found):
        return 0.0
    precision = sum(math.log(f / t) for f, t in zip(found, total, strict=True)) / LONGEST
    return math.exp(min(0.0, 1 - closest / length) + precision)


def _grams(text: list[str], n: int) -> Counter:
    return Counter(tuple(text[k : k + n]) for k in range(len(text) - n + 1))
