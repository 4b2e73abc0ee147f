# pyright: basic
"""Failures of ptxas, the assembler that Triton calls, as errors that say which kernel and why."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from triton.runtime.errors import PTXASError

from tilelink.errors import BindingError

REASON = re.compile(r"^ptxas\S* .*?(?:fatal|error)\s*: (?:\(C\d+\) )?(.+)", re.MULTILINE)


@contextmanager
def assembling(kernel: str) -> Iterator[None]:
    """Raise BindingError if ptxas fails while a kernel of this name is compiled."""
    try:
        yield
    except PTXASError as error:
        reasons = REASON.findall(str(error))
        said = reasons[0] if reasons else str(error).strip()
        hint = "see which ptxas Triton calls, and whether it knows the processor"
        if "registers" in said:
            hint = "take smaller tiles, or fewer warps, of which each thread has more registers"
        raise BindingError(f"ptxas cannot assemble kernel {kernel}: {said}", hint=hint) from None
