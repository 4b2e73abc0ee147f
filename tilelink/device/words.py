# pyright: basic, reportArgumentType=false, reportRedeclaration=false, reportAttributeAccessIssue=false
"""Words of data and flag, as in NCCL's protocol LL: 32 bits of each in 64 bits that are stored and loaded at once.

Whoever loads a word with the flag of this launch has its data: the two need no fence, and no rank needs a counter. The
flag is the number of the launch in 32 bits; memory is zero, or holds words of other launches, before a word arrives.

A tile of pointers has the address of each element's part of a word. A word's address is that of its first element's
part. An element of 64 bits has two words, the second one `HALF` words after the first.

- send: each thread stores its words, relaxed at the scope of the system. Nothing is released.
- receive: all words are loaded together, relaxed and volatile, and counted where their flags are old. One barrier tells
  all threads whether there is such a word; if there is, all words are loaded again. So no thread of a program goes on
  before all words are there. What they return is what they loaded last: nothing is loaded again afterwards.
- sweep: where a launch may leave words unsent, a flag may stay in memory until its number comes again. So now and then
  a rank replaces the old flags in its own memory, each by a compare-and-swap: a word that comes meanwhile stays.
- if there are fewer words than threads, several warps load the same ones, each at its own time. Triton takes them for
  alike: a sum over warps counts one of them, and a later exchange between threads may take any. So each thread gets a
  word of its own then: a tile has as many copies of each word as threads load it, and all of them are counted.
"""

import numpy as np
import triton
import triton.language as tl

from tilelink.device import monitor
from tilelink.device.assembly import SEND_WORD, START, WORDS_LATE, WORDS_LATE_DEADLINE
from tilelink.device.mode import BLOCK, INTERPRETED, block_threads, number, portable
from tilelink.device.tracing import WAIT, begin, end

SWEPT = tl.constexpr(1024)
"""Words that a program sweeps at a time."""


@portable
def _bits(value):
    """Return the bits of a value of at most 32 bits, below zeros, in an int32."""
    if value.dtype == tl.int1:
        bits = value.to(tl.int32)
    elif value.dtype.primitive_bitwidth == 8:
        bits = value.to(tl.uint8, bitcast=True).to(tl.int32)
    elif value.dtype.primitive_bitwidth == 16:
        bits = value.to(tl.uint16, bitcast=True).to(tl.int32)
    else:
        bits = value.to(tl.int32, bitcast=True)
    return bits


@portable
def _of_bits(bits, DTYPE: tl.constexpr):
    """Return the value whose bits are the low ones of an int32."""
    if DTYPE == tl.int1:  # noqa: SIM300
        value = (bits & 1) != 0
    elif DTYPE.primitive_bitwidth == 8:
        value = bits.to(tl.uint8).to(DTYPE, bitcast=True)
    elif DTYPE.primitive_bitwidth == 16:
        value = bits.to(tl.uint16).to(DTYPE, bitcast=True)
    else:
        value = bits.to(DTYPE, bitcast=True)
    return value


@portable
def _first_of_two(tile):
    """Return the elements of a tile at even places of its last axis, and those at odd places, as vectors."""
    return tl.split(tl.reshape(tile, (tile.numel // 2, 2)))


@portable
def _in_words(tile, PACKED: tl.constexpr):
    """Return the elements of a tile that begin a word."""
    if PACKED == 1:
        first = tile
    elif PACKED == 2:
        first, _ = _first_of_two(tile)
    else:
        even, _ = _first_of_two(tile)
        first, _ = _first_of_two(even)
    return first


@portable
def _packed(bits, PACKED: tl.constexpr):
    """Return the bits of elements, PACKED to a word, the first one lowest."""
    if PACKED == 1:
        data = bits
    elif PACKED == 2:
        low, high = _first_of_two(bits)
        data = low | (high << 16)
    else:
        even, odd = _first_of_two(bits)
        low, high = _first_of_two(even | (odd << 8))
        data = low | (high << 16)
    return data


@portable
def _unpacked(data, like, PACKED: tl.constexpr):
    """Return the bits of the elements of words, in the shape of a tile."""
    if PACKED == 1:
        bits = data
    elif PACKED == 2:
        bits = tl.reshape(tl.join(data & 0xFFFF, (data >> 16) & 0xFFFF), like.shape)
    else:
        two = tl.reshape(tl.join(data & 0xFFFF, (data >> 16) & 0xFFFF), (like.numel // 2,))
        bits = tl.reshape(tl.join(two & 0xFF, (two >> 8) & 0xFF), like.shape)
    return bits


if INTERPRETED:

    def _in_line(tile):
        """Return a tile whose elements follow one another in memory, as the interpreter's atomics take for granted."""
        tile.handle.data = np.ascontiguousarray(tile.handle.data)
        return tile

    def _send(at, data, there, flag):
        at, there = _in_line(at), _in_line(there)
        word = _in_line((tl.cast(flag, tl.int64) << 32) | (data.to(tl.int64) & 0xFFFFFFFF))
        pointers = at.to(tl.pointer_type(tl.int64))
        # Words are stored one by one, so late ones show whether the receiver looks at each of them.
        parities = np.arange(word.numel.value).reshape(word.handle.data.shape) % 2
        for parity in (1, 0):
            chosen = there & there
            chosen.handle.data = chosen.handle.data & (parities == parity)
            tl.atomic_xchg(pointers, word, mask=chosen, sem="relaxed", scope="sys")
            monitor.delay()

    def _replace(at, old, new):
        tl.atomic_cas(_in_line(at), _in_line(old), _in_line(new), sem="relaxed", scope="sys")

    def _receive(at, there, flag, channel, debug_block, stage, tile):
        at, there = _in_line(at), _in_line(there)
        pointers = at.to(tl.pointer_type(tl.int64))
        none = pointers.to(tl.int64) * 0
        where = {"channel": number(channel), "stage": number(stage), "tile": number(tile)}
        expected = int(np.count_nonzero(there.handle.data))
        monitor.delay()
        while True:
            words = tl.atomic_add(pointers, none, mask=there, sem="relaxed", scope="sys")
            seen = int(np.count_nonzero(there.handle.data & ((words.handle.data >> 32) == number(flag))))
            if seen == expected:
                return tl.where(there, words.to(tl.int32), 0)
            monitor.poll(seen=seen, expected=expected, **where)

else:

    @triton.jit
    def _send(at, data, there, flag):
        there = there.to(tl.int32)
        flag = there * 0 + flag
        tl.inline_asm_elementwise(
            SEND_WORD, "=r,l,r,r,r", [at, data, flag, there], dtype=tl.int32, is_pure=False, pack=1
        )

    @triton.jit
    def _replace(at, old, new):
        tl.atomic_cas(at, old, new, sem="relaxed", scope="sys")

    @triton.jit
    def _receive(at, there, flag, channel, debug_block, stage: tl.constexpr, tile):
        """Return the data of words when all of them have the flag, or when the wait has taken too long."""
        # A warp sums up what it has loaded by itself, without a look at other warps.
        if at.numel > 32 and at.numel < block_threads():
            copies: tl.constexpr = block_threads() // at.numel
            every = _copied(at, copies)
            found = _received(every, _copied(there, copies), flag, channel, debug_block, stage, tile, copies)
            data = tl.reshape(tl.max(found, axis=0), at.shape)
        else:
            data = _received(at, there, flag, channel, debug_block, stage, tile, 1)
        return data

    @triton.jit
    def _copied(x, COPIES: tl.constexpr):
        return tl.broadcast_to(tl.reshape(x, (1, x.numel)), (COPIES, x.numel))

    @triton.jit
    def _received(at, there, flag, channel, debug_block, stage: tl.constexpr, tile, COPIES: tl.constexpr):
        pointers = at.to(tl.pointer_type(tl.int64))
        if debug_block is None:
            words = tl.load(pointers, mask=there, other=0, volatile=True)
            state = _state(_missing(words, there, flag))
            while state != 0:
                words = tl.load(pointers, mask=there, other=0, volatile=True)
                state = _state(_missing(words, there, flag))
        else:
            begun = tl.inline_asm_elementwise(START, "=l", [], dtype=tl.int64, is_pure=False, pack=1)
            count = _total(there) // COPIES
            block = debug_block.to(tl.int64)
            words = tl.load(pointers, mask=there, other=0, volatile=True)
            missing = (_missing(words, there, flag) + COPIES - 1) // COPIES
            state = _state_with_deadline(missing, count, block, stage, tile, channel, begun)
            while state != 0:
                words = tl.load(pointers, mask=there, other=0, volatile=True)
                missing = (_missing(words, there, flag) + COPIES - 1) // COPIES
                state = _state_with_deadline(missing, count, block, stage, tile, channel, begun)
        return words.to(tl.int32)

    @triton.jit
    def _missing(words, there, flag):
        """Return how many words have another flag."""
        return _total(there & ((words >> 32).to(tl.int32) != flag))

    @triton.jit
    def _total(mask):
        return tl.sum(tl.ravel(mask.to(tl.int32)), axis=0)

    @triton.jit
    def _state(missing):
        """Return whether words are missing, the same in all threads of the program; it contains a barrier."""
        return tl.inline_asm_elementwise(WORDS_LATE, "=r,r", [missing], dtype=tl.int32, is_pure=False, pack=1)

    @triton.jit
    def _state_with_deadline(missing, count, block, stage: tl.constexpr, tile, channel, begun):
        arguments = [missing, count, block, stage, tl.cast(tile, tl.int32), tl.cast(channel, tl.int32), begun]
        return tl.inline_asm_elementwise(
            WORDS_LATE_DEADLINE, "=r,r,r,l,r,r,r,l", arguments, dtype=tl.int32, is_pure=False, pack=1
        )


@portable
def send_words(pointers, value, mask, flag, PACKED: tl.constexpr, HALF: tl.constexpr):
    """Store a tile as words with a flag.

    pointers: of each element's part of a word. value: of the element type, or broadcast to the shape of pointers.
    mask: elements that are stored, None for all. flag: int32, the number of the launch.
    PACKED: elements of a word. HALF: 0, or of elements of 64 bits the words between those of its two halves.
    """
    if not pointers.type.is_block():
        pointers = pointers + tl.arange(0, 1)
    at = pointers.to(tl.int64)
    there = at == at
    if mask is not None:
        there = there & mask
    value = tl.broadcast_to(value, at.shape)
    if HALF == 0:
        data = _packed(_bits(value), PACKED)
        _send(_in_words(at, PACKED), data, _in_words(there.to(tl.int32), PACKED) != 0, flag)
    else:
        _send(at, value.to(tl.int32), there, flag)
        _send(at + 8 * HALF, (value >> 32).to(tl.int32), there, flag)


@portable
def receive_words(
    pointers, mask, flag, DTYPE: tl.constexpr, PACKED: tl.constexpr, HALF: tl.constexpr, channel, debug_block,
    stage: tl.constexpr, tile, trace=None,
):  # fmt: skip
    """Return a tile of a type when all of its words have a flag; elements outside of the mask are 0.

    It ends with a barrier of the program's threads. channel, debug_block, stage, tile, trace: as of `wait`. A report of
    a wait that takes too long has how many words have come, and how many there are.

    Otherwise as `send_words`.
    """
    begin(trace, WAIT, BLOCK)
    single: tl.constexpr = not pointers.type.is_block()
    if single:
        pointers = pointers + tl.arange(0, 1)
    at = pointers.to(tl.int64)
    there = at == at
    if mask is not None:
        there = there & mask
    if HALF == 0:
        begins = _in_words(there.to(tl.int32), PACKED) != 0
        data = _receive(_in_words(at, PACKED), begins, flag, channel, debug_block, stage, tile)
        bits = tl.where(there, _unpacked(data, at, PACKED), 0)
        if single:
            bits = tl.sum(bits, axis=0)
        value = _of_bits(bits, DTYPE)
    else:
        low = _receive(at, there, flag, channel, debug_block, stage, tile)
        high = _receive(at + 8 * HALF, there, flag, channel, debug_block, stage, tile)
        value = (high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)
        value = tl.where(there, value, 0)
        if single:
            value = tl.sum(value, axis=0)
    end(trace, WAIT, stage, tile, channel, 0, BLOCK)
    return value


@portable
def received_entry(pointer, flag, last: tl.constexpr, channel, debug_block, stage: tl.constexpr, tile):
    """Return the integer in a word when it has a flag, clamped to 0, ..., last. It ends with a barrier."""
    value = receive_words(pointer, None, flag, tl.int32, 1, 0, channel, debug_block, stage, tile)
    return tl.minimum(tl.maximum(value, 0), last)


@triton.jit
def sweep_words(words, launch, COUNT: tl.constexpr, PERIOD: tl.constexpr, WINDOW: tl.constexpr):
    """Replace old flags among COUNT words of this rank, in some launches, by that of the launch before this one.

    Nobody waits for that one any more. An old one is of more than PERIOD // 2 launches ago. It is done in the first
    WINDOW launches of each PERIOD. launch: int64. All programs of a kernel take part.
    """
    if (launch >= PERIOD) & (launch % PERIOD < WINDOW):
        first = words.to(tl.pointer_type(tl.int64))
        for start in range(tl.program_id(0) * SWEPT, COUNT, tl.num_programs(0) * SWEPT):
            at = first + tl.minimum(start + tl.arange(0, SWEPT), COUNT - 1)
            old = tl.load(at, volatile=True)
            age = launch.to(tl.int32) - (old >> 32).to(tl.int32)
            new = tl.broadcast_to((launch - 1) << 32, old.shape)
            _replace(at, old, tl.where(age > PERIOD // 2, new, old))
