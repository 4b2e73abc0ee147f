"""The device library: functions for kernels, on stock Triton, compiled or interpreted.

Generated kernels say `from tilelink import device as dl` and call `dl.wait`, `dl.notify`, ... A name means the
same in both modes. Compiled for NVIDIA or AMD it is a `@triton.jit` function (compiled.py). In Triton's interpreter
(TRITON_INTERPRET=1 when triton was imported) it is a plain Python function (interpreted.py) that reports to
monitor.py.

A kernel's rank and number of ranks are run-time arguments, so that one binary serves every rank. The device keeps no
state that would hold them. Inside a node copies use peer pointers. Between nodes kernels put and get: compiled they
call NVSHMEM (nvshmem.py), whose bitcode is linked into these kernels alone; interpreted they send through network.py.

pointers    symm_at
launches    announce_entry, finish_launch, launch_number, announce_finished, begin_copies, count_program
tiles       take_tile
signals     wait, wait_all, wait_each, consume_token, hold, notify, notify_each, signal_add, fence, quiet, trap
words       send_words, receive_words, received_entry, sweep_words
network     put, put_signal, get, network_notify, network_fence, network_quiet
tracing     trace_track, tile_begin, tile_end, transfer_begin, transfer
scopes      BLOCK, WARP
integers    mod, floordiv
tile math   cast, dot, sigmoid, silu, tanh, gelu, gelu_tanh, relu, rsqrt, maximum, minimum, reduce_max, reduce_min,
            attend_begin, attend_step, attend_finish
"""

from tilelink.device.mode import BLOCK, INTERPRETED, WARP

if INTERPRETED:
    from tilelink.device.interpreted import (
        consume_token,
        fence,
        get,
        network_fence,
        network_notify,
        network_quiet,
        notify,
        notify_each,
        opaque,
        publish,
        put,
        put_signal,
        quiet,
        signal_add,
        symm_at,
        tile_begin,
        tile_end,
        transfer,
        transfer_begin,
        trap,
        wait,
        wait_all,
        wait_each,
    )
else:
    from tilelink.device.compiled import (
        consume_token,
        fence,
        notify,
        notify_each,
        opaque,
        publish,
        quiet,
        signal_add,
        symm_at,
        tile_begin,
        tile_end,
        transfer,
        transfer_begin,
        trap,
        wait,
        wait_all,
        wait_each,
    )
    from tilelink.device.nvshmem import get, network_fence, network_notify, network_quiet, put, put_signal

from tilelink.device.attention import attend_begin, attend_finish, attend_step
from tilelink.device.dynamic import take_tile
from tilelink.device.handshake import (
    announce_entry,
    announce_finished,
    begin_copies,
    count_program,
    finish_launch,
    launch_number,
)
from tilelink.device.numeric import (
    cast,
    dot,
    first_of,
    floordiv,
    gelu,
    gelu_tanh,
    maximum,
    minimum,
    mod,
    quotient,
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_min,
    relu,
    remainder,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    silu,
    tanh,
)
from tilelink.device.tracing import trace_track
from tilelink.device.words import receive_words, received_entry, send_words, sweep_words

__all__ = [
    "INTERPRETED", "symm_at", "announce_entry", "finish_launch", "launch_number", "announce_finished", "begin_copies",
    "count_program", "take_tile", "wait", "wait_all", "wait_each", "consume_token", "opaque", "notify", "notify_each",
    "signal_add", "fence", "quiet", "trap", "publish", "put", "put_signal", "get", "network_notify", "network_fence",
    "network_quiet", "send_words", "receive_words", "received_entry", "sweep_words", "BLOCK", "WARP", "trace_track",
    "tile_begin", "tile_end", "transfer_begin", "transfer", "mod", "floordiv", "cast", "dot", "sigmoid", "silu", "tanh",
    "gelu", "gelu_tanh", "relu", "rsqrt", "maximum", "minimum", "first_of", "quotient", "reduce_all", "reduce_any",
    "reduce_max", "remainder", "shift_left", "shift_right", "reduce_min", "attend_begin", "attend_step",
    "attend_finish",
]  # fmt: skip
