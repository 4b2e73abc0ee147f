# pyright: basic, reportArgumentType=false
"""Online softmax: attention over keys that arrive in parts.

The state of M rows is (m [M], total [M], acc [M, D]), all f32: the largest score so far, the sum of exp(score - m), and
the same sum of value rows. A row whose scores are all -inf so far has m = -inf, total = 0, acc = 0.
"""

import triton.language as tl

from tilelink.device.mode import portable
from tilelink.device.numeric import cast, dot

LOG2E = tl.constexpr(1.4426950408889634)


@portable
def attend_begin(M: tl.constexpr, D: tl.constexpr):
    """Return the initial state (m, total, acc) of M rows and D value columns."""
    m = tl.full((M,), float("-inf"), tl.float32)
    return m, tl.zeros((M,), tl.float32), tl.zeros((M, D), tl.float32)


@portable
def attend_step(m, total, acc, scores, v):
    """Return the state after N more keys.

    scores: [M, N] f32, scaled, and -inf where masked (whole rows may be). v: [N, D], of any float type.
    """
    largest = tl.maximum(m, tl.max(scores, axis=1))
    # Any finite value can replace a maximum of -inf: it is subtracted from -inf, whose exp is 0.
    shift = tl.where(largest == float("-inf"), 0.0, largest) * LOG2E
    old = tl.exp2(m * LOG2E - shift)
    p = tl.exp2(scores * LOG2E - shift[:, None])
    return largest, total * old + tl.sum(p, axis=1), dot(cast(p, v.dtype), v, acc * old[:, None])


@portable
def attend_finish(m, total, acc):
    """Return the attention output [M, D] f32. Rows without an unmasked key are zero."""
    return acc / tl.where(total > 0, total, 1.0)[:, None]
