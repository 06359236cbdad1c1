"""Which parameters are clipped together.

Usually all of them: one norm, one weight per sample.  With a mapping from name patterns to rules,
each group has its own norm, weight and bound, and one sample moves the sums of all groups by at
most sqrt(sum of bound^2).

>>> import psac
>>> rules = {"head.*": psac.PSAC(bound=0.5), "*": psac.PSAC()}
>>> groups = Groups.by_pattern(rules, ["head.weight", "body.weight", "head.bias"])
>>> groups.of(["head.bias"]), groups.of(["body.weight"])
(0, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from psac.gradients.errors import PrivacyError


@dataclass(frozen=True)
class Groups:
    """`count` groups; parameters that `members` does not name belong to the first."""

    count: int = 1
    members: Mapping[str, int] = field(default_factory=dict)
    patterns: tuple[str, ...] = ("*",)

    def of(self, names: Iterable[str]) -> int:
        """The group of parameters whose gradients can only be measured together."""
        if self.count == 1:
            return 0
        groups = {self.members[name] for name in names}
        if len(groups) > 1:
            raise PrivacyError(
                f"the parameters {sorted(names)} are derived from each other (weight norm, "
                f"slices), but are in the groups {[self.patterns[k] for k in sorted(groups)]}. "
                "Clip them by one rule."
            )
        return groups.pop()

    @classmethod
    def by_pattern(cls, patterns: Iterable[str], names: Iterable[str]) -> Groups:
        """The first pattern that fits a name (as file names do: `*`, `?`) is its group."""
        patterns, names = tuple(patterns), list(names)
        members = {
            name: k
            for name in names
            for k in reversed(range(len(patterns)))
            if fnmatchcase(name, patterns[k])
        }
        left = [name for name in names if name not in members]
        if left:
            raise ValueError(
                f"no clipping rule is given for the parameters {left}: the patterns are "
                f"{list(patterns)}. Add one that fits them, such as '*'."
            )
        unused = [pattern for k, pattern in enumerate(patterns) if k not in members.values()]
        if unused:
            raise ValueError(
                f"the clipping patterns {unused} fit no parameter (or only such as an earlier "
                f"pattern takes). The parameters are {names}."
            )
        return cls(len(patterns), members, patterns)


TOGETHER = Groups()
