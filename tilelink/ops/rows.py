"""Calls with any number of rows by the kernels of a few: what such a kernel takes for a call, and what the call gets.

A kernel has a fixed number of rows. A call with fewer has the others hold anything, and leaves their results out: a row
of a result depends on no other row of x. So when a batch changes, nothing is compiled, and no memory is allocated that
all ranks have. Rows that are left over lie at the end of every rank's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tilelink.ops.choice import rounded_rows
from tilelink.ops.operators import Operator
from tilelink.ops.partial_inputs import extended


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of a call and of its kernel.

    parts: of x, which lie one after the other, one for each rank if rows are scattered. results: of a result, one for
    each rank if rows are gathered. call, kernel: rows of a part.
    """

    parts: int
    results: int
    call: int
    kernel: int

    @property
    def fit(self) -> bool:
        """True if the kernel has as many rows as the call."""
        return self.call == self.kernel

    @property
    def total(self) -> int:
        """Return the rows of the kernel over all ranks."""
        return self.kernel * max(self.parts, self.results)

    def given(self, x: torch.Tensor) -> torch.Tensor:
        """Return x with the rows of the kernel: the memory after it if there is enough, else a copy.

        Those that it lacks have any value.
        """
        if self.fit:
            return x
        if self.parts == 1:
            return extended(x, 0, self.kernel)
        larger = x.new_empty((self.parts * self.kernel, *x.shape[1:]))
        self.place(x, larger)
        return larger

    def place(self, x: torch.Tensor, larger: torch.Tensor) -> None:
        """Copy the rows of the call to where the kernel has them."""
        columns = x.shape[1:]
        parts = larger.view(self.parts, self.kernel, *columns)[:, : self.call]
        parts.copy_(x.reshape(self.parts, self.call, *columns))

    def taken(self, y: torch.Tensor, columns: Sequence[int]) -> torch.Tensor:
        """Return the rows of the call of a contiguous result: a view where they lie together, else a copy.

        columns: the sizes of a row, which y has in any number of dimensions.
        """
        if self.results == 1:
            return y.view(self.kernel, *columns)[: self.call]
        return y.view(self.results, self.kernel, *columns)[:, : self.call].flatten(0, 1)


def rows_of(operator: Operator, rows: int, ranks: int, *, exact: bool = False) -> Rows:
    """Return the rows of a call whose x has `rows` rows. exact: the kernel has as many.

    ranks: 1 for a kernel of as many rows as x has, of which each rank computes all.
    """
    if operator.rows == "kept":
        return Rows(parts=1, results=1, call=rows, kernel=rows if exact else rounded_rows(rows, ranks))
    parts, results = (1, ranks) if operator.gathers else (ranks, 1)
    part = rows // parts
    return Rows(parts=parts, results=results, call=part, kernel=part if exact else rounded_rows(part))


def kernel_rows(operator: Operator, most: int, ranks: int) -> list[int]:
    """Return the numbers of rows of x that have kernels, so that calls with up to `most` rows need no others."""
    parts = ranks if operator.scatters else 1
    found: set[int] = set()
    # The kernel of a sum divides its rows among the ranks, or rounds less and does not.
    for dividing in (ranks, 1) if operator.rows == "kept" else (ranks,):
        rows = parts
        while rows <= most:
            kernel = parts * rows_of(operator, rows, dividing).kernel
            found.add(kernel)
            rows = kernel + parts
    return sorted(found)
