# pyright: basic, reportOptionalCall=false, reportRedeclaration=false
"""What generated kernels use of NVSHMEM: a comparison of unsigned numbers of 64 bits."""

from typing import Any

import triton.language as tl
from triton.language import core

from tilelink.device.mode import INTERPRETED

NVSHMEM_CMP_EQ = 0
NVSHMEM_CMP_GE = 5

if INTERPRETED:
    from tilelink.device import monitor
    from tilelink.device.interpreted import number
    from triton_dist import language

    def signal_wait_until(ptr: Any, comparison: Any, value: Any) -> None:
        expected = number(value) % 2**64
        compare = {NVSHMEM_CMP_EQ: int.__eq__, NVSHMEM_CMP_GE: int.__ge__}[number(comparison)]
        while not compare((seen := language.read(ptr)) % 2**64, expected):
            monitor.poll(seen=seen, channel=language.place(ptr), expected=expected, stage=-1, tile=-1)

else:

    @core.builtin
    def signal_wait_until(sig_addr, cmp_, cmp_val, _semantic=None):
        assert sig_addr.dtype in (core.pointer_type(tl.uint64), core.pointer_type(tl.int64))
        values = [tl.cast(value, tl.uint64, _semantic=_semantic) for value in (cmp_, cmp_val)]
        text = "// dl.signal_wait_until $1 $2 $3\nmov.u32 $0, 0;"
        core.inline_asm_elementwise(text, "=r,l,l,l", [sig_addr, *values], tl.int32, False, 1, _semantic=_semantic)
