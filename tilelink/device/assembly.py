# pyright: basic
"""Assembly of signals. These texts implement every ordering rule of a signal; tests look for the rules in the PTX.

They are constexpr globals: Triton hashes those into a kernel's cache key, so a changed text is a new binary.

- notify: every thread of the program arrives at a barrier, then one thread releases. A release by one thread without
  the barrier would publish only its own stores. Before that, TMA stores (the asynchronous proxy) are waited for until
  they are *written*, hence wait_group without .read, and fenced against the ordinary proxy.
- wait: one thread, or each for its elements, polls with acquire, then the barrier releases the others, then a proxy
  fence orders TMA loads. The difference of counter and target is compared with zero: counters only grow, and this is
  correct when they wrap.
- the result of each text is a zero that the compiler does not know. Added to the coordinates of a load it is a data
  dependence, the only thing that keeps a software-pipelined loop from loading before it waits.
- traces: thread 0 writes them, so that a track needs no atomics and the other threads do not wait for its loads.
- publish: the same barrier and fence between a program's own stores and its loads.
- `bar.sync` is inside the text: Triton's own barrier operation in a loop disables the loop's pipelining.

Labels and registers are local to the braces, so a text may appear any number of times in a kernel.

Texts are written for the threads of a scope: all threads of a block, or one warp if a block has several programs, one
per warp. Their fields are {thread}, the number of a thread, {threads}, the number of threads, {barrier}, a barrier of
these threads, the operands by name, of which {token} is the result, and the parts of the text itself.
"""

from typing import NamedTuple

import triton.language as tl

from tilelink.device.spans import BEGUN, CAPACITY, COUNT, HEAD, RECORD


class Threads(NamedTuple):
    """The threads of a program, in PTX."""

    thread: str
    threads: str
    barrier: str


BLOCK_THREADS = Threads(thread="%tid.x", threads="%ntid.x", barrier="bar.sync 0;")
WARP_THREADS = Threads(thread="%laneid", threads="32", barrier="bar.warp.sync 0xffffffff;")


def _text(text: str, operands: str, threads: Threads = BLOCK_THREADS, **parts: str) -> tl.constexpr:
    """Return a text for the threads of a scope.

    operands: the names of $0, $1 and so on, which are fields of the text. parts: fields that have these fields too.
    """
    names = {name: f"${number}" for number, name in enumerate(operands.split())} | threads._asdict()
    return tl.constexpr(text.format(**names, **{name: part.format(**names) for name, part in parts.items()}))


# The report of a wait that exceeds its budget: the rank's first one writes the debug block, others go to {otherwise}.
# {debug_block}: budget in ns, tripped, stage, tile, channel, seen, expected, program. {count} puts into %seen how much
# has come.
_REPORT = """mov.u64 %now, 0;
mov.u64 %word, 1;
atom.relaxed.sys.global.cas.b64 %word, [{{debug_block}}+8], %now, %word;
setp.ne.s64 %reported, %word, 0;
@%reported bra {otherwise};
cvt.s64.s32 %word, {{stage}};
st.global.b64 [{{debug_block}}+16], %word;
cvt.s64.s32 %word, {{tile}};
st.global.b64 [{{debug_block}}+24], %word;
cvt.s64.s32 %word, {{channel}};
st.global.b64 [{{debug_block}}+32], %word;
{count}cvt.s64.s32 %word, %seen;
st.global.b64 [{{debug_block}}+40], %word;
cvt.s64.s32 %word, {{target}};
st.global.b64 [{{debug_block}}+48], %word;
mov.u32 %program, %ctaid.x;
cvt.u64.u32 %word, %program;
st.global.b64 [{{debug_block}}+56], %word;"""
_REPORT_COUNTER = _REPORT.format(otherwise="DONE", count="")
_REPORT_WORDS = _REPORT.format(otherwise="TELL", count="sub.s32 %seen, {target}, {missing};\n")

_FIRST_POLLS = {
    "only": "mov.u32 %thread, {thread};\nsetp.ne.u32 %others, %thread, 0;\n@%others bra DONE;",
    "joined": "{barrier}",
}
"""The first thread polls for the others."""
_EACH_POLLS = {"only": "setp.eq.s32 %others, {chosen}, 0;\n@%others bra DONE;", "joined": "", "after": ""}
"""Each thread polls for its elements, if the operand `chosen` is not zero. There is no barrier, for a thread may have
several elements: BARRIER follows."""

# {only}: which threads poll; the others go to DONE. {joined}: the barrier of all of them
_WAIT = "token counter target"
_POLL = """{{
.reg .pred %others, %late; .reg .b32 %thread, %missing;
{only}
POLL:
ld.acquire.sys.global.b32 %missing, [{counter}];
sub.s32 %missing, %missing, {target};
setp.lt.s32 %late, %missing, 0;
@%late bra POLL;
DONE:
{joined}
{after}
mov.u32 {token}, 0;
}}"""

# The threads divide {count} counters, which are {step} apart, so that they wait in parallel.
_WAIT_ALL = "token counters target count step"
_POLL_ALL = """{{
.reg .pred %done, %late; .reg .b32 %index, %offset, %missing, %threads; .reg .b64 %address;
mov.u32 %index, {thread};
NEXT:
setp.ge.u32 %done, %index, {count};
@%done bra DONE;
mul.lo.u32 %offset, %index, {step};
mul.wide.u32 %address, %offset, 4;
add.s64 %address, %address, {counters};
POLL:
ld.acquire.sys.global.b32 %missing, [%address];
sub.s32 %missing, %missing, {target};
setp.lt.s32 %late, %missing, 0;
@%late bra POLL;
mov.u32 %threads, {threads};
add.u32 %index, %index, %threads;
bra NEXT;
DONE:
{barrier}
{after}
mov.u32 {token}, 0;
}}"""

# {only} as above. Once the debug block is tripped, every wait returns at once.
_WAIT_WITH_DEADLINE = f"{_WAIT} debug_block stage tile channel"
_POLL_WITH_DEADLINE = """{{
.reg .pred %others, %late, %tripped, %early, %reported; .reg .b32 %thread, %seen, %missing, %program;
.reg .b64 %start, %now, %budget, %word;
{only}
ld.global.b64 %budget, [{debug_block}];
mov.u64 %start, %globaltimer;
POLL:
ld.acquire.sys.global.b32 %seen, [{counter}];
sub.s32 %missing, %seen, {target};
setp.lt.s32 %late, %missing, 0;
@!%late bra DONE;
ld.relaxed.sys.global.b64 %word, [{debug_block}+8];
setp.ne.s64 %tripped, %word, 0;
@%tripped bra DONE;
mov.u64 %now, %globaltimer;
sub.s64 %now, %now, %start;
setp.lt.s64 %early, %now, %budget;
@%early bra POLL;
{report}
DONE:
{joined}
{after}
mov.u32 {token}, 0;
}}""".replace("{report}", _REPORT_COUNTER)

_NOTIFY = "token signal value"
_SIGNAL = """{{
.reg .pred %first; .reg .b32 %thread;
{before}
{barrier}
mov.u32 %thread, {thread};
setp.eq.u32 %first, %thread, 0;
@%first {operation};
mov.u32 {token}, 0;
}}"""

# spans.py describes the layout of a track
_BEGIN = "token track kind"
_TRACE_BEGIN = """{{
.reg .pred %others; .reg .b32 %thread; .reg .b64 %now, %address;
mov.u32 %thread, {thread};
setp.ne.u32 %others, %thread, 0;
@%others bra DONE;
mul.wide.u32 %address, {kind}, 8;
add.s64 %address, %address, {track};
mov.u64 %now, %globaltimer;
st.global.b64 [%address+{begun}], %now;
DONE:
mov.u32 {token}, 0;
}}"""

# {first}, {second}: arguments of the kind. Records that do not fit are only counted.
_END = "token track kind stage tile first second"
_TRACE_END = """{{
.reg .pred %others, %full; .reg .b32 %thread, %source;
.reg .b64 %now, %begin, %count, %capacity, %address, %next, %what, %more;
{before}
mov.u32 %thread, {thread};
setp.ne.u32 %others, %thread, 0;
@%others bra DONE;
mov.u64 %now, %globaltimer;
mul.wide.u32 %address, {kind}, 8;
add.s64 %address, %address, {track};
ld.global.b64 %begin, [%address+{begun}];
ld.global.b64 %count, [{track}+{count}];
ld.global.b64 %capacity, [{track}+{capacity}];
add.s64 %next, %count, 1;
st.global.b64 [{track}+{count}], %next;
setp.ge.s64 %full, %count, %capacity;
@%full bra DONE;
mul.lo.s64 %address, %count, {record};
add.s64 %address, %address, {track};
shl.b32 %source, {stage}, 8;
or.b32 %source, %source, {kind};
mov.b64 %what, {{%source, {tile}}};
mov.b64 %more, {{{first}, {second}}};
st.global.b64 [%address+{head}], %what;
st.global.b64 [%address+{head}+8], %more;
st.global.b64 [%address+{head}+16], %begin;
st.global.b64 [%address+{head}+24], %now;
DONE:
mov.u32 {token}, 0;
}}"""
_TRACK = {
    "begun": str(8 * BEGUN), "count": str(8 * COUNT), "capacity": str(8 * CAPACITY), "record": str(8 * RECORD),
    "head": str(8 * HEAD),
}  # fmt: skip

# The word is the whole message, so no release is needed: a fence would take longer in one direction. {own}: the local
# word, {there}: the peer's, {answer}: address for (sent, the peer's time, received), {limit}: when to give up
PING = _text(
    """{{
.reg .pred %others, %came, %early; .reg .b32 %thread; .reg .b64 %sent, %now, %word;
mov.u32 %thread, {thread};
setp.ne.u32 %others, %thread, 0;
@%others bra DONE;
mov.u64 %word, 1;
mov.u64 %sent, %globaltimer;
st.relaxed.sys.global.b64 [{there}], %word;
POLL:
ld.relaxed.sys.global.b64 %word, [{own}];
mov.u64 %now, %globaltimer;
setp.ne.s64 %came, %word, 0;
@%came bra CAME;
setp.lt.s64 %early, %now, {limit};
@%early bra POLL;
bra DONE;
CAME:
st.global.b64 [{answer}], %sent;
st.global.b64 [{answer}+8], %word;
st.global.b64 [{answer}+16], %now;
DONE:
{barrier}
mov.u32 {token}, 0;
}}""",
    "token own there answer limit",
)

PONG = _text(
    """{{
.reg .pred %others, %came, %early; .reg .b32 %thread; .reg .b64 %now, %word;
mov.u32 %thread, {thread};
setp.ne.u32 %others, %thread, 0;
@%others bra DONE;
POLL:
ld.relaxed.sys.global.b64 %word, [{own}];
mov.u64 %now, %globaltimer;
setp.ne.s64 %came, %word, 0;
@%came bra CAME;
setp.lt.s64 %early, %now, {limit};
@%early bra POLL;
bra DONE;
CAME:
st.relaxed.sys.global.b64 [{there}], %now;
DONE:
{barrier}
mov.u32 {token}, 0;
}}""",
    "token own there limit",
)

# {chosen}: 0 for no store
SEND_WORD = _text(
    """{{
.reg .pred %chosen; .reg .b64 %word;
setp.ne.s32 %chosen, {chosen}, 0;
mov.b64 %word, {{{data}, {flag}}};
@%chosen st.relaxed.sys.global.b64 [{address}], %word;
mov.u32 {token}, 0;
}}""",
    "token address data flag chosen",
)
START = _text("mov.u64 {time}, %globaltimer;", "time")

# {late}: 1 if a thread misses words, else 0; {missing}: words that this thread misses. All threads have the same
# answer: some may have looked earlier than others.
WORDS_LATE = _text(
    """{{
.reg .pred %missing;
setp.ne.s32 %missing, {missing}, 0;
bar.red.or.pred %missing, 0, %missing;
selp.b32 {late}, 1, 0, %missing;
}}""",
    "late missing",
)

# The same until the time is over: thread 0 looks at the clock and at the debug block, reports, and tells all others.
# {target}: words that this thread waits for
WORDS_LATE_DEADLINE = _text(
    """{{
.reg .pred %missing, %others, %over, %reported; .reg .b32 %thread, %seen, %late, %program;
.reg .b64 %now, %budget, %word;
setp.ne.s32 %missing, {missing}, 0;
mov.u32 %late, 0;
bar.red.or.pred %missing, 0, %missing;
@!%missing bra DONE;
setp.ne.s32 %over, %late, 0;
mov.u32 %thread, {thread};
setp.ne.u32 %others, %thread, 0;
@%others bra TELL;
ld.relaxed.sys.global.b64 %word, [{debug_block}+8];
setp.ne.s64 %over, %word, 0;
@%over bra TELL;
ld.global.b64 %budget, [{debug_block}];
mov.u64 %now, %globaltimer;
sub.s64 %now, %now, {start};
setp.ge.s64 %over, %now, %budget;
@!%over bra TELL;
{report}
TELL:
bar.red.or.pred %over, 0, %over;
selp.b32 %late, 0, 1, %over;
DONE:
mov.u32 {late}, %late;
}}""",
    "late missing target debug_block stage tile channel start",
    report=_REPORT_WORDS,
)

_FENCE_PROXY = "fence.proxy.async.global;"
_STORES_DONE = "cp.async.bulk.wait_group 0;\nfence.proxy.async.global;"
_ADD_GPU = "red.release.gpu.global.add.u32 [{signal}], {value}"
_ADD_SYS = "red.release.sys.global.add.u32 [{signal}], {value}"


POLL = _text(_POLL, _WAIT, BLOCK_THREADS, **_FIRST_POLLS, after="")
POLL_TMA = _text(_POLL, _WAIT, BLOCK_THREADS, **_FIRST_POLLS, after=_FENCE_PROXY)
POLL_ALL = _text(_POLL_ALL, _WAIT_ALL, BLOCK_THREADS, after="")
POLL_ALL_TMA = _text(_POLL_ALL, _WAIT_ALL, BLOCK_THREADS, after=_FENCE_PROXY)
POLL_DEADLINE = _text(_POLL_WITH_DEADLINE, _WAIT_WITH_DEADLINE, BLOCK_THREADS, **_FIRST_POLLS, after="")
POLL_DEADLINE_TMA = _text(_POLL_WITH_DEADLINE, _WAIT_WITH_DEADLINE, BLOCK_THREADS, **_FIRST_POLLS, after=_FENCE_PROXY)
POLL_EACH = _text(_POLL, f"{_WAIT} chosen", BLOCK_THREADS, **_EACH_POLLS)
POLL_EACH_DEADLINE = _text(_POLL_WITH_DEADLINE, f"{_WAIT_WITH_DEADLINE} chosen", BLOCK_THREADS, **_EACH_POLLS)
TRACE_BEGIN = _text(_TRACE_BEGIN, _BEGIN, BLOCK_THREADS, **_TRACK)
TRACE_END = _text(_TRACE_END, _END, BLOCK_THREADS, **_TRACK, before="")
TRACE_END_ALL = _text(_TRACE_END, _END, BLOCK_THREADS, **_TRACK, before="{barrier}")

ADD_GPU = _text(_SIGNAL, _NOTIFY, BLOCK_THREADS, before="", operation=_ADD_GPU)
ADD_SYS = _text(_SIGNAL, _NOTIFY, BLOCK_THREADS, before="", operation=_ADD_SYS)
ADD_GPU_TMA = _text(_SIGNAL, _NOTIFY, BLOCK_THREADS, before=_STORES_DONE, operation=_ADD_GPU)
ADD_SYS_TMA = _text(_SIGNAL, _NOTIFY, BLOCK_THREADS, before=_STORES_DONE, operation=_ADD_SYS)

BARRIER = tl.constexpr("bar.sync 0;\nmov.u32 $0, 0;")
BARRIER_TMA = tl.constexpr(f"bar.sync 0;\n{_FENCE_PROXY}\nmov.u32 $0, 0;")
HOLD = tl.constexpr("mov.u32 $0, $1;")
FENCE = tl.constexpr("fence.acq_rel.sys; mov.u32 $0, 0;")
QUIET_TMA = tl.constexpr("cp.async.bulk.wait_group 0; fence.proxy.async.global; fence.acq_rel.sys; mov.u32 $0, 0;")


# Programs of one warp copy by TMA, so all of their variants are the TMA ones.
WARP_POLL = _text(_POLL, _WAIT, WARP_THREADS, **_FIRST_POLLS, after=_FENCE_PROXY)
WARP_POLL_ALL = _text(_POLL_ALL, _WAIT_ALL, WARP_THREADS, after=_FENCE_PROXY)
WARP_POLL_DEADLINE = _text(_POLL_WITH_DEADLINE, _WAIT_WITH_DEADLINE, WARP_THREADS, **_FIRST_POLLS, after=_FENCE_PROXY)
WARP_ADD_GPU = _text(_SIGNAL, _NOTIFY, WARP_THREADS, before=_STORES_DONE, operation=_ADD_GPU)
WARP_ADD_SYS = _text(_SIGNAL, _NOTIFY, WARP_THREADS, before=_STORES_DONE, operation=_ADD_SYS)
WARP_PUBLISH = tl.constexpr(f"{_STORES_DONE}\n{WARP_THREADS.barrier}\nmov.u32 $0, 0;")
# Lane 0 counts, after all loads of the other lanes
WARP_COUNT = _text(
    """{{
.reg .pred %first; .reg .b32 %thread;
{barrier}
mov.u32 %thread, {thread};
setp.eq.u32 %first, %thread, 0;
@%first red.relaxed.gpu.global.add.u64 [{counter}], {increment};
mov.u32 {token}, 0;
}}""",
    "token counter increment",
    WARP_THREADS,
)
TRAP = tl.constexpr("trap;\nmov.u32 $0, 0;")
WARP_TRACE_BEGIN = _text(_TRACE_BEGIN, _BEGIN, WARP_THREADS, **_TRACK)
WARP_TRACE_END = _text(_TRACE_END, _END, WARP_THREADS, **_TRACK, before="")

# AMD, by LLVM's memory model of gfx942. Before a release every wave writes back its own stores and waits for that
# (vmcnt counts stores too): the release by one wave would not wait for the others' stores.
AMD_RELEASE_GPU = tl.constexpr("buffer_wbl2 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b32 $0, 0")
AMD_RELEASE_SYS = tl.constexpr("buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b32 $0, 0")
AMD_FENCE = tl.constexpr("buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\nbuffer_inv sc0 sc1\ns_mov_b32 $0, 0")
AMD_TRAP = tl.constexpr("s_trap 2\ns_mov_b32 $0, 0")
AMD_TOKEN = tl.constexpr("s_mov_b32 $0, 0")
AMD_CLOCK = tl.constexpr("s_memrealtime $0\ns_waitcnt lgkmcnt(0)")
AMD_CLOCK_NS = tl.constexpr(10)  # its clock ticks at 100 MHz
