# pyright: basic, reportArgumentType=false, reportCallIssue=false
"""What the device library's kernels must compute, checked wherever they run: interpreted, or on a GPU."""

import math

import torch

from tests.runtime import device_kernels as kernels
from tilelink.dtypes import DTYPES
from tilelink.reference.dtypes import converted
from tilelink.runtime.cuda.helper_kernels import close_launch, open_launch, skip_launches


def check_integers(device: str) -> None:
    least, most = -(2**31), 2**31 - 1
    for divisor in (1, 3, 4, 8, 2**30, most, -1, -3, -8, -(2**30) - 1, least):
        first = least + 1 if divisor == -1 else least  # its quotient by -1 has no 32 bits
        a = torch.tensor([first, -9, -4, -1, 0, 3, 8, most], dtype=torch.int32, device=device)
        quotient = torch.full((24,), -99, dtype=torch.int32, device=device)
        remainder = quotient.clone()
        n = torch.tensor([divisor], dtype=torch.int32, device=device)
        kernels.integers[(1,)](a, n, quotient, remainder, 8)
        cases = [(int(x), divisor) for x in a] * 2 + [(i - 8, 5) for i in range(8)]
        assert quotient.tolist() == [x // n for x, n in cases]
        assert remainder.tolist() == [x % n for x, n in cases]


def check_elementwise(device: str, dtype: torch.dtype) -> None:
    special = [0.0, -0.0, 1.0, -1.0, 1e-4, -1e-4, 30.0, -30.0, 300.0, -300.0]
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(special), 4 * torch.randn(128 - len(special))]).to(dtype).to(device)
    out = torch.empty(7, 128, device=device)
    kernels.elementwise[(1,)](x, out, 128)
    f = x.float()
    gelu = torch.nn.functional.gelu
    expected = [
        torch.sigmoid(f),
        torch.nn.functional.silu(f),
        torch.tanh(f),
        gelu(f),
        gelu(f, approximate="tanh"),
        torch.relu(f),
        torch.rsqrt(f.abs() + 0.5),
    ]
    for row, (found, wanted) in enumerate(zip(out, expected, strict=True)):
        torch.testing.assert_close(found, wanted, rtol=2e-6, atol=1e-6, msg=lambda text, row=row: f"{row}: {text}")


def check_relu_keeps_nan(device: str) -> None:
    x = torch.full((128,), math.nan, device=device)
    out = torch.empty(7, 128, device=device)
    kernels.elementwise[(1,)](x, out, 128)
    assert out[5].isnan().all()


def check_extremes(device: str, dtype: torch.dtype) -> None:
    """A nan is the largest and the smallest, wherever it stands."""
    x = torch.arange(16 * 16, device=device).reshape(16, 16).flip(1).to(dtype)
    y = torch.full_like(x, 100)
    if dtype.is_floating_point:
        x[0], x[1, 0], x[2, -1], x[3], y[4], x[5, 3] = math.nan, math.nan, math.nan, math.inf, math.nan, -math.inf
    out = torch.empty(2 * 16 * 16 + 2 * 16, dtype=dtype, device=device)
    kernels.extremes[(1,)](x, y, out, 16, 16)
    wanted = [torch.maximum(x, y), torch.minimum(x, y), x.amax(1), x.amin(1)]
    wanted = torch.cat([one.flatten() for one in wanted])
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)


def check_convert(device: str) -> None:
    """Rounding of f32 to bf16: ties, carries into the exponent, subnormals, infinities, NaN, and random words."""
    words = [0x3F808000, 0x3F818000, 0x3F808001, 0x3FFFFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x00000001, 0x80018000]
    words += [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF]
    torch.manual_seed(1)
    bits = torch.tensor([word - (word >> 31 << 32) for word in words], dtype=torch.int32)
    noise = torch.randint(-(2**31), 2**31, (256 - len(words) - 2,), dtype=torch.int64).to(torch.int32)
    x = torch.cat([bits.view(torch.float32), torch.tensor([math.nan, -math.nan]), noise.view(torch.float32)]).to(device)
    out = torch.empty(256, dtype=torch.bfloat16, device=device)
    kernels.convert[(1,)](x, out, 256, kernels.tl.bfloat16)
    torch.testing.assert_close(out, x.bfloat16(), rtol=0, atol=0, equal_nan=True)
    wide = torch.empty(256, device=device)
    kernels.convert[(1,)](out, wide, 256, kernels.tl.float32)
    torch.testing.assert_close(wide, out.float(), rtol=0, atol=0, equal_nan=True)


F8 = {"f8e4m3": (torch.float8_e4m3fn, kernels.tl.float8e4nv), "f8e5m2": (torch.float8_e5m2, kernels.tl.float8e5)}


def _odd_numbers() -> torch.Tensor:
    """All numbers of bf16, the halves between 8-bit floats with their neighbours, and random words: f32."""
    words = torch.arange(2**16, dtype=torch.int64) << 16
    numbers = [(words - (words >> 31 << 32)).to(torch.int32).view(torch.float32)]
    for kind, _ in F8.values():
        held = torch.arange(256, dtype=torch.uint8).view(kind).float()
        held = held[held.isfinite()].sort().values
        halves = (held[1:] + held[:-1]) / 2
        up = torch.full_like(halves, math.inf)
        numbers += [held, halves, halves.nextafter(up), halves.nextafter(-up)]
    torch.manual_seed(4)
    missing = -sum(len(one) for one in numbers) % 2**12 + 2**14
    numbers.append(torch.randint(-(2**31), 2**31, (missing,), dtype=torch.int64).to(torch.int32).view(torch.float32))
    return torch.cat(numbers)


def check_convert_f8(device: str, dtype: str) -> None:
    """Rounding to 8-bit floats is that of the reference, of f32 and of bf16, bit by bit; widening is exact."""
    kind, name = F8[dtype]
    for source in (_odd_numbers(), _odd_numbers()[: 2**16].bfloat16()):
        wanted = converted(source.float(), dtype)
        for x, expected in zip(source.split(2**12), wanted.split(2**12), strict=True):
            out = torch.empty(2**12, dtype=kind, device=device)
            kernels.convert[(1,)](x.to(device), out, 2**12, name)
            nan = expected.float().isnan()
            assert torch.equal(out.cpu().float().isnan(), nan)
            assert torch.equal(out.cpu().view(torch.uint8)[~nan], expected.view(torch.uint8)[~nan])
    every = torch.arange(256, dtype=torch.uint8, device=device).view(kind)
    for wide, target in ((torch.float32, kernels.tl.float32), (torch.bfloat16, kernels.tl.bfloat16)):
        out = torch.empty(256, dtype=wide, device=device)
        kernels.convert[(1,)](every, out, 256, target)
        torch.testing.assert_close(out, every.to(wide), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(out.signbit()[~out.isnan()], every.to(wide).signbit()[~out.isnan()])


def check_convert_integers(device: str) -> None:
    """Integers of 8 bits saturate, of floats without what is after the point; NaN is 0."""
    x = torch.tensor([-300.0, -128.9, -1.5, -0.5, 0.5, 127.9, 128.0, 255.9, 256.0, 3e38, math.inf, -math.inf, math.nan])
    for dtype, target in (("i8", kernels.tl.int8), ("u8", kernels.tl.uint8)):
        for source in (torch.cat([x, torch.zeros(3)]), torch.arange(-200, 312, 32, dtype=torch.int32)):
            out = torch.empty(16, dtype=DTYPES[dtype], device=device)
            kernels.convert[(1,)](source.to(device), out, 16, target)
            assert out.tolist() == converted(source, dtype).tolist()


def check_product_of_bytes(device: str) -> None:
    """Products of 8-bit floats are added up in f32, those of integers in i32."""
    torch.manual_seed(2)
    for dtype in ("i8", *F8):
        a, b = (converted(torch.randn(size, 32) * 40, dtype).to(device) for size in (32, 32))
        c = torch.empty(32, 32, device=device, dtype=torch.int32 if dtype == "i8" else torch.float32)
        kernels.product[(1,)](a, b, c, 32, 32, 32)
        wanted = 2 * (a.double() @ b.double().T)
        torch.testing.assert_close(c.double(), wanted, rtol=1e-3, atol=0 if dtype == "i8" else 2.0)


def check_product(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    a, b = torch.randn(16, 32).to(dtype).to(device), torch.randn(16, 32).to(dtype).to(device)
    c = torch.empty(16, 16, device=device)
    kernels.product[(1,)](a, b, c, 16, 16, 32)
    wanted = 2 * (a.double() @ b.double().T)
    torch.testing.assert_close(c, wanted.float(), rtol=1e-5, atol=1e-5)


def check_attention(device: str, dtype: torch.dtype) -> None:
    """Three pieces of keys; row 0 sees none, row 1 none in the first piece, row 2 none in the last."""
    torch.manual_seed(3)
    scores = 5 * torch.randn(3, 16, 16)
    scores[:, 0] = -math.inf
    scores[0, 1] = -math.inf
    scores[2, 2] = -math.inf
    scores[1, 3, ::2] = -math.inf
    v = torch.randn(3, 16, 16).to(dtype)
    out = torch.full((16, 16), math.nan, device=device)
    kernels.attend[(1,)](scores.to(device), v.to(device), out, 3, 16, 16, 16)
    flat = scores.permute(1, 0, 2).reshape(16, 48)
    wanted = torch.softmax(flat, dim=1).nan_to_num(0.0) @ v.float().reshape(48, 16)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.cpu(), wanted, rtol=tolerance, atol=tolerance)


def check_wait_all(device: str) -> None:
    """As many counters as there are more threads than fit; those around them have not been reached."""
    for count in (1, 5, 300):
        signals = torch.full((count + 2,), 7, dtype=torch.int32, device=device)
        signals[0] = signals[-1] = -9
        out = torch.zeros(1, dtype=torch.int32, device=device)
        kernels.await_all[(1,)](signals, out, 1, 7, None, count)
        assert out.tolist() == [1]
    signals = torch.tensor([0, 7, 0, 0, 7, 0, 0, 9, 0], dtype=torch.int32, device=device)
    kernels.await_all[(1,)](signals, out, 1, 7, None, 3, 3)
    assert out.tolist() == [2], "every third, and the token is nothing"


def check_notify_each(device: str) -> None:
    """Five ranks but one, each its own counter; then one counter twice."""
    x = torch.zeros(1024, dtype=torch.int32, device=device)
    pads = torch.zeros(8, 16, dtype=torch.int32, device=device)
    signal_table = torch.tensor([row.data_ptr() for row in pads], device=device)
    kernels.tell_each[(1,)](x, pads[1], signal_table, None, 2, 3, 5, 8)
    expected = torch.zeros(8, 16, dtype=torch.int32)
    for rank in (0, 1, 2, 4):
        expected[rank, 2 + rank] = 1
    assert pads.tolist() == expected.tolist()
    kernels.tell_one[(1,)](x, pads[1], signal_table, None, 6, 9)
    expected[6, 9] = 2
    assert pads.tolist() == expected.tolist()
    assert x.tolist() == list(range(9, 1024 + 9))


def check_launches(device: str) -> None:
    """Rank 1 of 3 alone, six programs and three launches; what peers would have told it is there before.

    Counters: 0..2 entered, 3..5 finished, 6 and 7 those of an output with two buffers, five notifies in each launch.
    """
    x = torch.zeros(6 * 64, dtype=torch.int32, device=device)
    pads = torch.zeros(3, 8, dtype=torch.int32, device=device)
    signal_table = torch.tensor([row.data_ptr() for row in pads], device=device)
    exits = torch.tensor([[6, 2, 1, 5]], dtype=torch.int32, device=device)
    handshake_block = torch.tensor([1, 0, 2, 1, exits.data_ptr()], dtype=torch.int64, device=device)
    epoch = torch.tensor([1], dtype=torch.int64, device=device)
    for launch in (1, 2, 3):
        pads[1, 3] = pads[1, 5] = launch - 1
        pads[1, 6], pads[1, 7] = 5 * ((launch + 1) // 2), 5 * (launch // 2)
        kernels.launch[(6,)](x, handshake_block, pads[1], signal_table, epoch, None, 1, 0, 3, 3, 4, 64)
        assert set(x.tolist()) == {launch} and epoch.tolist() == [launch + 1]
        assert handshake_block.tolist()[:2] == [1, 6 * launch]
        assert pads[:, 1].tolist() == pads[:, 4].tolist() == [launch] * 3, "entered and finished, once on every rank"
    before = pads.clone()
    for none in (torch.zeros_like(handshake_block), None):
        kernels.launch[(6,)](x, none, pads[1], signal_table, epoch, None, 1, 0, 3, 3, 4, 64)
        assert pads.tolist() == before.tolist() and epoch.tolist() == [4] and set(x.tolist()) == {4}


def check_counted_launches(device: str) -> None:
    """Rank 1 of 3 alone, six programs: three launches, a captured one with buffer 0 of 2, and two more.

    Counters: 0..2 entered, 3..5 finished. What peers would have told is there before. Once where counters wrap.
    """
    _counted_launches(device, 0)
    _counted_launches(device, 2**31 - 4)


def _counted_launches(device: str, before: int) -> None:
    """before: how many launches there have been."""

    def wrapped(number: int) -> int:
        return (number + 2**31) % 2**32 - 2**31

    x = torch.zeros(6 * 64, dtype=torch.int32, device=device)
    pads = torch.zeros(3, 8, dtype=torch.int32, device=device)
    pads[1, 3] = pads[1, 5] = wrapped(before + 20)
    pads[:, 1] = pads[:, 4] = before
    signal_table = torch.tensor([row.data_ptr() for row in pads], device=device)
    handshake_block = torch.tensor([1, 0, 0, 0, 0], dtype=torch.int64, device=device)
    epoch = torch.tensor([before + 1, 0, 0, before], dtype=torch.int64, device=device)
    none = torch.zeros(1, dtype=torch.int32, device=device)

    def launches(*expected: int, block: torch.Tensor | None = handshake_block) -> None:
        for number in expected:
            kernels.counted_launch[(6,)](x, block, signal_table, epoch, 1, 0, 3, 3, 4, 6, 64)
            assert set(x.tolist()) == {wrapped(before + number)}

    def told(entered: int, finished: int) -> None:
        expected = ([wrapped(before + entered)] * 3, [wrapped(before + finished)] * 3)
        assert (pads[:, 1].tolist(), pads[:, 4].tolist()) == expected

    launches(1, 2, 3)
    told(3, 2)
    assert epoch.tolist() == [before + 1, 0, 18, before + 2]
    state = (pads[1], signal_table, epoch, None)
    constants = {
        "RANKS": 3, "BLOCK": 4, "ENTERED": 0, "FINISHED": 3, "COUNTERS": 0, "FLAGS": 0, "LAG": 1, "ENTRY": True,
        "STAGE": 1, "PROGRAMS": 6, "CYCLE": 2,
    }  # fmt: skip
    skip_launches[(1,)](*state, none, none, none, 1, **constants, SLOT=0)
    told(4, 4)
    open_launch[(1,)](*state, 1, RANKS=3, BLOCK=4, ENTERED=0, WAIT=False, STAGE=1)
    launches(5, block=torch.zeros_like(handshake_block))
    close_launch[(1,)](*state, none, none, none, none, 1, **constants, EXITS=0)
    told(5, 5)
    launches(6, 7)
    told(7, 6)
    launches(6, 6, block=None)  # nobody counts where the runtime does it
    assert epoch.tolist() == [before + 6, 1, 12, before + 6]


def check_begun_copies(device: str) -> None:
    """Rank 1 of 3 alone, six programs and a copy engine: three launches, a captured one with buffer 0 of 2, one more.

    Counters: 0..2 entered, 3..5 finished. What peers would have told is there before. The second flag is never set by
    the GPU itself, the first one is, in the buffer of the launch: counters 6, 7.
    """
    x = torch.zeros(6 * 64, dtype=torch.int32, device=device)
    pads = torch.zeros(3, 8, dtype=torch.int32, device=device)
    pads[1, 3] = pads[1, 5] = 20
    signal_table = torch.tensor([row.data_ptr() for row in pads], device=device)
    flags = torch.tensor([[3, 2, 2, 6, 1], [2, 1, 1, -1, 1]], dtype=torch.int32, device=device)
    values, ready = (torch.zeros(n, dtype=torch.int32, device=device) for n in (2, 1))
    words = [1, 0, 2, 0, 0, len(flags), flags.data_ptr(), values.data_ptr(), ready.data_ptr()]
    handshake_block = torch.tensor(words, dtype=torch.int64, device=device)
    epoch = torch.tensor([1, 0, 0, 0], dtype=torch.int64, device=device)
    state = (pads[1], signal_table, epoch, None)

    def launches(*expected: int) -> None:
        for number in expected:
            kernels.copying_launch[(6,)](x, handshake_block, *state, 1, 3, 3, 4, 6, 64)
            assert set(x.tolist()) == {number} and ready.tolist() == [1]
            assert values.tolist() == [3 * ((number - 1) // 2) + 2, 2 * (number - 1) + 1]
            assert pads[1, 7 - number % 2].item() == values[0].item()
            assert pads[:, 4].tolist() == [number - 1] * 3, "told of the launches before"
            ready.zero_()

    launches(1, 2, 3)
    none = torch.zeros(1, dtype=torch.int32, device=device)
    tables = (none, flags, values, 1)
    constants = {
        "RANKS": 3, "BLOCK": 4, "ENTERED": 0, "FINISHED": 3, "COUNTERS": 0, "FLAGS": 2, "LAG": 2, "ENTRY": False,
        "STAGE": 1, "PROGRAMS": 6, "CYCLE": 2,
    }  # fmt: skip
    skip_launches[(1,)](*state, *tables, **constants, SLOT=0)
    assert (values.tolist(), pads[:, 4].tolist()) == ([8, 9], [4] * 3), "launch 4 is skipped, 5 is prepared"
    kernels.copying_launch[(6,)](x, torch.zeros_like(handshake_block), *state, 1, 3, 3, 4, 6, 64)
    assert set(x.tolist()) == {5} and ready.tolist() == [0]
    close_launch[(1,)](*state, none, *tables, **constants, EXITS=0)
    assert epoch.tolist() == [6, 1, 0, 5] and pads[:, 4].tolist() == [5] * 3
    launches(6)
    skip_launches[(1,)](*state, *tables, **{**constants, "CYCLE": 1}, SLOT=0)
    assert epoch.tolist() == [7, 0, 0, 6] and pads[:, 4].tolist() == [6] * 3, "with one buffer none are skipped"


def check_boundaries(device: str) -> None:
    """Rank 1 of 2 alone: the end of launch 1, and what is skipped before a captured launch with buffer 0 of 2.

    Counters: 0, 1 entered, 2, 3 finished, 4, 5 a peer's for each buffer, 6, 7 own ones, set for the next launch.
    """
    pads = torch.zeros(2, 8, dtype=torch.int32, device=device)
    pads[1, 2] = 9
    signal_table = torch.tensor([row.data_ptr() for row in pads], device=device)
    epoch = torch.tensor([1, 0, 0, 0], dtype=torch.int64, device=device)
    counters = torch.tensor([[0, 0, 1]] * 4 + [[5, 0, 2], [5, 1, 2], [7, 0, 2], [7, 1, 2]], device=device).int()
    flags = torch.tensor([[2, 1, 2, -1, 1], [3, 2, 2, 6, 1]], dtype=torch.int32, device=device)
    values = torch.zeros(2, dtype=torch.int32, device=device)
    state, tables = (pads[1], signal_table, epoch, None), (counters, flags, values, 1)
    constants = {
        "RANKS": 2, "BLOCK": 2, "ENTERED": 0, "FINISHED": 2, "COUNTERS": 8, "FLAGS": 2, "LAG": 1, "ENTRY": False,
        "STAGE": 1, "PROGRAMS": 0,
    }  # fmt: skip
    close_launch[(1,)](*state, flags, *tables, **constants, EXITS=0, CYCLE=0)
    assert pads.tolist() == [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 9, 1, 0, 0, 0, 2]]
    assert (values.tolist(), epoch.tolist()) == ([1, 2], [2, 0, 0, 0])
    skip_launches[(1,)](*state, *tables, **constants, CYCLE=2, SLOT=0)
    assert pads.tolist() == [[0, 0, 0, 2, 0, 0, 0, 0], [0, 0, 9, 2, 0, 5, 5, 9]], "launch 2 is skipped"
    assert (values.tolist(), epoch.tolist()) == ([3, 5], [3, 1, 0, 0])


def check_low_level(device: str) -> None:
    signals = torch.full((1,), 7, dtype=torch.int32, device=device)
    out = torch.zeros(1, dtype=torch.int32, device=device)
    kernels.low_level[(1,)](signals, out)
    assert (signals.item(), out.item()) == (42, 42)


def check_push(device: str) -> None:
    """Rank 1 of 2 pushes to rank 0, in one process: every counter and every element ends as it should."""
    x = torch.arange(256.0, device=device)
    y = torch.zeros(2, 256, device=device)
    pads = torch.zeros(2, 8, dtype=torch.int32, device=device)
    pads[1, 3] = 6
    table = torch.tensor([row.data_ptr() for row in y], device=device)
    signal_table = torch.tensor([row.data_ptr() for row in pads], device=device)
    epoch = torch.tensor([3], device=device)
    kernels.push[(1,)](x, y[1], table, signal_table, pads[1], epoch, None, 1, 2, 0, 256, True, True)
    assert torch.equal(y[0], x)
    assert not y[1].any()
    assert pads.tolist() == [[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 6, 0, 0, 0, 0]]


def check_wrapped_counters(device: str) -> None:
    """A counter that has wrapped is past a target that has not."""
    signals = torch.tensor([-(2**31) + 1], dtype=torch.int32, device=device)
    kernels.await_one[(1,)](signals, 0, 2**31 - 2, None, 0)
    signals.fill_(-1)
    kernels.await_one[(1,)](signals, 0, 2**32 - 1, None, 0)
