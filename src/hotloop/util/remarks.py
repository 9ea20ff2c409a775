"""Remarks: what a pass did or could not do, as records that `explain` prints."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Remark:
    """One remark of one pass.

    `kind` is "did" where the pass changed the program and "missed" where it stopped; a missed
    remark names the first argument or field that broke the rule.
    """

    pass_name: str
    kind: Literal["did", "missed"]
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.where}: {self.text}"
