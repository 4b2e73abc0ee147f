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
these threads, and the fields of the text itself.
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


def _of(threads: Threads, text: str, **fields: str) -> tl.constexpr:
    """Return a text for the threads of a scope."""
    return tl.constexpr(text.format(**threads._asdict(), **fields))


def _poll(threads: Threads, text: str, after: str) -> tl.constexpr:
    """Return the text of a wait for one counter, which the first thread polls for the others."""
    return _of(threads, text, only=_IF_FIRST.format(**threads._asdict()), after=after)


def _poll_each(text: str, chosen: str) -> tl.constexpr:
    """Return the text of a wait that each thread performs for its elements, if the operand `chosen` is not zero.

    It has no barrier: a thread may have several elements. BARRIER follows.
    """
    only = f"setp.eq.s32 %p, {chosen}, 0;\n@%p bra DONE;"
    return tl.constexpr(text.format(only=only, barrier="", after=""))


# The report of a wait that exceeds its budget: the rank's first one writes the debug block, others go to {otherwise}.
# $3 debug block: budget in ns, tripped, stage, tile, channel, seen, expected, program; $2 expected, $4 stage, $5 tile,
# $6 channel. {seen} puts into %word how much has come.
_REPORT = """mov.u64 %now, 0;
mov.u64 %word, 1;
atom.relaxed.sys.global.cas.b64 %word, [$3+8], %now, %word;
setp.ne.s64 %p, %word, 0;
@%p bra {otherwise};
cvt.s64.s32 %word, $4;
st.global.b64 [$3+16], %word;
cvt.s64.s32 %word, $5;
st.global.b64 [$3+24], %word;
cvt.s64.s32 %word, $6;
st.global.b64 [$3+32], %word;
{seen}
st.global.b64 [$3+40], %word;
cvt.s64.s32 %word, $2;
st.global.b64 [$3+48], %word;
mov.u32 %v, %ctaid.x;
cvt.u64.u32 %word, %v;
st.global.b64 [$3+56], %word;"""
_REPORT_COUNTER = _REPORT.format(otherwise="DONE", seen="cvt.s64.s32 %word, %v;")
_REPORT_WORDS = _REPORT.format(otherwise="TELL", seen="sub.s32 %v, $2, $1;\ncvt.s64.s32 %word, %v;")

_IF_FIRST = "mov.u32 %v, {thread};\nsetp.ne.u32 %p, %v, 0;\n@%p bra DONE;"
"""Only the first thread polls."""

# $0 token, $1 counter, $2 target. {only}: which threads poll; the others go to DONE
_POLL = """{{
.reg .pred %p; .reg .b32 %v;
{only}
POLL:
ld.acquire.sys.global.b32 %v, [$1];
sub.s32 %v, %v, $2;
setp.lt.s32 %p, %v, 0;
@%p bra POLL;
DONE:
{barrier}
{after}
mov.u32 $0, 0;
}}"""

# $0 token, $1 first counter, $2 target, $3 number of counters, $4 step between them. The threads divide the counters,
# so that they wait in parallel.
_POLL_ALL = """{{
.reg .pred %p; .reg .b32 %i, %v; .reg .b64 %at;
mov.u32 %i, {thread};
NEXT:
setp.ge.u32 %p, %i, $3;
@%p bra DONE;
mul.lo.u32 %v, %i, $4;
mul.wide.u32 %at, %v, 4;
add.s64 %at, %at, $1;
POLL:
ld.acquire.sys.global.b32 %v, [%at];
sub.s32 %v, %v, $2;
setp.lt.s32 %p, %v, 0;
@%p bra POLL;
mov.u32 %v, {threads};
add.u32 %i, %i, %v;
bra NEXT;
DONE:
{barrier}
{after}
mov.u32 $0, 0;
}}"""

# $0 token, $1 counter, $2 target, $3 debug block, $4 stage, $5 tile, $6 channel; {only} as above. Once the block is
# tripped, every wait returns at once.
_POLL_WITH_DEADLINE = f"""{{{{
.reg .pred %p; .reg .b32 %v, %d; .reg .b64 %start, %now, %budget, %word;
{{only}}
ld.global.b64 %budget, [$3];
mov.u64 %start, %globaltimer;
POLL:
ld.acquire.sys.global.b32 %v, [$1];
sub.s32 %d, %v, $2;
setp.lt.s32 %p, %d, 0;
@!%p bra DONE;
ld.relaxed.sys.global.b64 %word, [$3+8];
setp.ne.s64 %p, %word, 0;
@%p bra DONE;
mov.u64 %now, %globaltimer;
sub.s64 %now, %now, %start;
setp.lt.s64 %p, %now, %budget;
@%p bra POLL;
{_REPORT_COUNTER}
DONE:
{{barrier}}
{{after}}
mov.u32 $0, 0;
}}}}"""

# $0 token, $1 signal, $2 value
_SIGNAL = """{{
.reg .pred %p; .reg .b32 %v;
{before}
{barrier}
mov.u32 %v, {thread};
setp.eq.u32 %p, %v, 0;
@%p {operation};
mov.u32 $0, 0;
}}"""

# $1 track, $2 kind; spans.py describes the layout of a track
_TRACE_BEGIN = f"""{{{{
.reg .pred %p; .reg .b32 %v; .reg .b64 %now, %at;
mov.u32 %v, {{thread}};
setp.ne.u32 %p, %v, 0;
@%p bra DONE;
mul.wide.u32 %at, $2, 8;
add.s64 %at, %at, $1;
mov.u64 %now, %globaltimer;
st.global.b64 [%at+{8 * BEGUN}], %now;
DONE:
mov.u32 $0, 0;
}}}}"""

# $1 track, $2 kind, $3 stage, $4 tile, $5 and $6 arguments of the kind; records that do not fit are only counted
_TRACE_END = f"""{{{{
.reg .pred %p; .reg .b32 %v; .reg .b64 %now, %begin, %count, %room, %at, %next, %what, %more;
{{before}}
mov.u32 %v, {{thread}};
setp.ne.u32 %p, %v, 0;
@%p bra DONE;
mov.u64 %now, %globaltimer;
mul.wide.u32 %at, $2, 8;
add.s64 %at, %at, $1;
ld.global.b64 %begin, [%at+{8 * BEGUN}];
ld.global.b64 %count, [$1+{8 * COUNT}];
ld.global.b64 %room, [$1+{8 * CAPACITY}];
add.s64 %next, %count, 1;
st.global.b64 [$1+{8 * COUNT}], %next;
setp.ge.s64 %p, %count, %room;
@%p bra DONE;
mul.lo.s64 %at, %count, {8 * RECORD};
add.s64 %at, %at, $1;
shl.b32 %v, $3, 8;
or.b32 %v, %v, $2;
mov.b64 %what, {{{{%v, $4}}}};
mov.b64 %more, {{{{$5, $6}}}};
st.global.b64 [%at+{8 * HEAD}], %what;
st.global.b64 [%at+{8 * HEAD + 8}], %more;
st.global.b64 [%at+{8 * HEAD + 16}], %begin;
st.global.b64 [%at+{8 * HEAD + 24}], %now;
DONE:
mov.u32 $0, 0;
}}}}"""

# The word is the whole message, so no release is needed: a fence would take longer in one direction. $1 local word, $2
# the peer's word, $3 address for (sent, the peer's time, received), $4 the time at which to give up
PING = tl.constexpr("""{
.reg .pred %p; .reg .b32 %v; .reg .b64 %sent, %now, %word;
mov.u32 %v, %tid.x;
setp.ne.u32 %p, %v, 0;
@%p bra DONE;
mov.u64 %word, 1;
mov.u64 %sent, %globaltimer;
st.relaxed.sys.global.b64 [$2], %word;
POLL:
ld.relaxed.sys.global.b64 %word, [$1];
mov.u64 %now, %globaltimer;
setp.ne.s64 %p, %word, 0;
@%p bra CAME;
setp.lt.s64 %p, %now, $4;
@%p bra POLL;
bra DONE;
CAME:
st.global.b64 [$3], %sent;
st.global.b64 [$3+8], %word;
st.global.b64 [$3+16], %now;
DONE:
bar.sync 0;
mov.u32 $0, 0;
}""")

# $1 local word, $2 the peer's word, $3 the time at which to give up
PONG = tl.constexpr("""{
.reg .pred %p; .reg .b32 %v; .reg .b64 %now, %word;
mov.u32 %v, %tid.x;
setp.ne.u32 %p, %v, 0;
@%p bra DONE;
POLL:
ld.relaxed.sys.global.b64 %word, [$1];
mov.u64 %now, %globaltimer;
setp.ne.s64 %p, %word, 0;
@%p bra CAME;
setp.lt.s64 %p, %now, $3;
@%p bra POLL;
bra DONE;
CAME:
st.relaxed.sys.global.b64 [$2], %now;
DONE:
bar.sync 0;
mov.u32 $0, 0;
}""")

# $1 address of the word, $2 data, $3 flag, $4 0 for no store
SEND_WORD = tl.constexpr("""{
.reg .pred %p; .reg .b64 %word;
setp.ne.s32 %p, $4, 0;
mov.b64 %word, {$2, $3};
@%p st.relaxed.sys.global.b64 [$1], %word;
mov.u32 $0, 0;
}""")
START = tl.constexpr("mov.u64 $0, %globaltimer;")

# $0 1 if a thread misses words, else 0; $1 words that this thread misses. All threads have the same answer: some may
# have looked earlier than others.
WORDS_LATE = tl.constexpr("""{
.reg .pred %p;
setp.ne.s32 %p, $1, 0;
bar.red.or.pred %p, 0, %p;
selp.b32 $0, 1, 0, %p;
}""")

# The same until the time is over: thread 0 looks at the clock and at the debug block, reports, and tells all others.
# $1 words that this thread misses, $2 words that it waits for, $3 debug block, $4 stage, $5 tile, $6 channel, $7 start
WORDS_LATE_DEADLINE = tl.constexpr(f"""{{
.reg .pred %p, %q; .reg .b32 %v, %late; .reg .b64 %now, %budget, %word;
setp.ne.s32 %p, $1, 0;
mov.u32 %late, 0;
bar.red.or.pred %p, 0, %p;
@!%p bra DONE;
setp.ne.s32 %q, %late, 0;
mov.u32 %v, %tid.x;
setp.ne.u32 %p, %v, 0;
@%p bra TELL;
ld.relaxed.sys.global.b64 %word, [$3+8];
setp.ne.s64 %q, %word, 0;
@%q bra TELL;
ld.global.b64 %budget, [$3];
mov.u64 %now, %globaltimer;
sub.s64 %now, %now, $7;
setp.ge.s64 %q, %now, %budget;
@!%q bra TELL;
{_REPORT_WORDS}
TELL:
bar.red.or.pred %q, 0, %q;
selp.b32 %late, 0, 1, %q;
DONE:
mov.u32 $0, %late;
}}""")

_FENCE_PROXY = "fence.proxy.async.global;"
_STORES_DONE = "cp.async.bulk.wait_group 0;\nfence.proxy.async.global;"
_ADD = "red.release.{scope}.global.add.u32 [$1], $2"
_SET = "st.release.{scope}.global.b32 [$1], $2"


POLL = _poll(BLOCK_THREADS, _POLL, after="")
POLL_TMA = _poll(BLOCK_THREADS, _POLL, after=_FENCE_PROXY)
POLL_ALL = _of(BLOCK_THREADS, _POLL_ALL, after="")
POLL_ALL_TMA = _of(BLOCK_THREADS, _POLL_ALL, after=_FENCE_PROXY)
POLL_DEADLINE = _poll(BLOCK_THREADS, _POLL_WITH_DEADLINE, after="")
POLL_DEADLINE_TMA = _poll(BLOCK_THREADS, _POLL_WITH_DEADLINE, after=_FENCE_PROXY)
POLL_EACH = _poll_each(_POLL, chosen="$3")
POLL_EACH_DEADLINE = _poll_each(_POLL_WITH_DEADLINE, chosen="$7")
TRACE_BEGIN = _of(BLOCK_THREADS, _TRACE_BEGIN)
TRACE_END = _of(BLOCK_THREADS, _TRACE_END, before="")
TRACE_END_ALL = _of(BLOCK_THREADS, _TRACE_END, before=BLOCK_THREADS.barrier)

ADD_GPU = _of(BLOCK_THREADS, _SIGNAL, before="", operation=_ADD.format(scope="gpu"))
ADD_SYS = _of(BLOCK_THREADS, _SIGNAL, before="", operation=_ADD.format(scope="sys"))
ADD_GPU_TMA = _of(BLOCK_THREADS, _SIGNAL, before=_STORES_DONE, operation=_ADD.format(scope="gpu"))
ADD_SYS_TMA = _of(BLOCK_THREADS, _SIGNAL, before=_STORES_DONE, operation=_ADD.format(scope="sys"))
SET_GPU = _of(BLOCK_THREADS, _SIGNAL, before="", operation=_SET.format(scope="gpu"))
SET_SYS = _of(BLOCK_THREADS, _SIGNAL, before="", operation=_SET.format(scope="sys"))
SET_GPU_TMA = _of(BLOCK_THREADS, _SIGNAL, before=_STORES_DONE, operation=_SET.format(scope="gpu"))
SET_SYS_TMA = _of(BLOCK_THREADS, _SIGNAL, before=_STORES_DONE, operation=_SET.format(scope="sys"))

BARRIER = tl.constexpr("bar.sync 0;\nmov.u32 $0, 0;")
BARRIER_TMA = tl.constexpr(f"bar.sync 0;\n{_FENCE_PROXY}\nmov.u32 $0, 0;")
HOLD = tl.constexpr("mov.u32 $0, $1;")
READ = tl.constexpr("ld.acquire.sys.global.b32 $0, [$1];")
FENCE = tl.constexpr("fence.acq_rel.sys; mov.u32 $0, 0;")
QUIET_TMA = tl.constexpr("cp.async.bulk.wait_group 0; fence.proxy.async.global; fence.acq_rel.sys; mov.u32 $0, 0;")


# Programs of one warp copy by TMA, so all of their variants are the TMA ones.
WARP_POLL = _poll(WARP_THREADS, _POLL, after=_FENCE_PROXY)
WARP_POLL_ALL = _of(WARP_THREADS, _POLL_ALL, after=_FENCE_PROXY)
WARP_POLL_DEADLINE = _poll(WARP_THREADS, _POLL_WITH_DEADLINE, after=_FENCE_PROXY)
WARP_ADD_GPU = _of(WARP_THREADS, _SIGNAL, before=_STORES_DONE, operation=_ADD.format(scope="gpu"))
WARP_ADD_SYS = _of(WARP_THREADS, _SIGNAL, before=_STORES_DONE, operation=_ADD.format(scope="sys"))
WARP_PUBLISH = tl.constexpr(f"{_STORES_DONE}\n{WARP_THREADS.barrier}\nmov.u32 $0, 0;")
# $1 the counter, $2 the increment: lane 0 counts, after all loads of the other lanes
WARP_COUNT = _of(
    WARP_THREADS,
    """{{
.reg .pred %p; .reg .b32 %v;
{barrier}
mov.u32 %v, {thread};
setp.eq.u32 %p, %v, 0;
@%p red.relaxed.gpu.global.add.u64 [$1], $2;
mov.u32 $0, 0;
}}""",
)
WARP_TRACE_BEGIN = _of(WARP_THREADS, _TRACE_BEGIN)
WARP_TRACE_END = _of(WARP_THREADS, _TRACE_END, before="")

# AMD, by LLVM's memory model of gfx942. Before a release every wave writes back its own stores and waits for that
# (vmcnt counts stores too): the release by one wave would not wait for the others' stores.
AMD_RELEASE_GPU = tl.constexpr("buffer_wbl2 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b32 $0, 0")
AMD_RELEASE_SYS = tl.constexpr("buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b32 $0, 0")
AMD_FENCE = tl.constexpr("buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0) lgkmcnt(0)\nbuffer_inv sc0 sc1\ns_mov_b32 $0, 0")
AMD_TOKEN = tl.constexpr("s_mov_b32 $0, 0")
AMD_CLOCK = tl.constexpr("s_memrealtime $0\ns_waitcnt lgkmcnt(0)")
AMD_CLOCK_NS = tl.constexpr(10)  # its clock ticks at 100 MHz
