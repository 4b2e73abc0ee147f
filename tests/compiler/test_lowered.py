"""Lowered programs as text: what is printed after a pass is read back as the same program."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest

from tests.campaign.judge import compared
from tests.compiler.library import Case, cases, fitted, in_turn, name, spread
from tests.lowered import parse_lowered
from tests.lowering.test_passes import PARTS, SMALL, on_the_way, sizes
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import CoverageError, ParseError, TileLinkError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.target import CPU, H200, Target
from tilelink.verifier import refusals, verify

RING, DIMS = (compiler.load("all_gather_ring").program(), None), {"Ms": 6, "K": 5}


def read(text: str) -> Bound:
    return parse_lowered(text, "lowered.tl")


def lowered(schedule: str = "parts", target: Target = SMALL) -> Bound:
    module = compiler.parse(PARTS)
    case = module.program(), next(one for one in module.schedules if one.name == schedule)
    return compiler.bound(*case, ranks=2, dims={"M": 64, "N": 64, "K": 2048}, target=target)


@thorough(unless=lambda case, target: target is H200 and one_in(3, case[0].name))
@pytest.mark.parametrize("target", [CPU, H200], ids=str)
@pytest.mark.parametrize("case", in_turn(cases()), ids=name)
def test_every_program_of_the_library_is_read_back_after_every_pass(case: Case, target: Target) -> None:
    before = None
    for bound in on_the_way(case, 3, fitted(case, sizes(case)), target).values():
        if bound == before:  # most passes leave most programs as they are
            continue
        before, text = bound, listing(bound)
        found = read(text)
        assert found == replace(bound, source=found.source, schedule=found.schedule)
        assert found.schedule.reuse_wait == bound.schedule.reuse_wait
        assert listing(found) == text


@thorough(unless=lambda case: one_in(6, name(case)))
@pytest.mark.parametrize(("case", "target"), spread(cases(), CPU, H200), ids=lambda one: name(one) or str(one))
def test_a_program_that_was_read_is_emitted_as_the_one_that_was_printed(case: Case, target: Target) -> None:
    """Sources differ in what the text does not have: their heads show the program and the schedule that it comes from,
    and comments begin with the file and the line of a statement."""
    bound = list(on_the_way(case, 2, fitted(case, sizes(case)), target).values())[-1]
    thresholds = make_plan(bound).thresholds
    own, again = emit(bound, thresholds), emit(read(listing(bound)), thresholds)
    assert again.kernels == own.kernels and again.copy_programs == own.copy_programs
    code = [text[text.index("\nimport triton\n") :] for text in (own.text, again.text)]
    whole = (re.sub(r"\n *#     ", " ", one) for one in code)  # where a long comment is broken, its file decides
    first, second = (re.sub(r"# [^\s:]+\.tl:\d+: ", "# ", one) for one in whole)
    assert first == second


@pytest.mark.parametrize("schedule", ["parts", "filled"])
def test_a_program_that_was_read_is_planned_and_proved(schedule: str) -> None:
    text = listing(lowered(schedule))
    assert refusals(make_plan(read(text))) == []
    lines = [line for line in text.splitlines() if "consumer_tile_wait" not in line]
    assert len(lines) < len(text.splitlines())
    (refusal, *_) = refusals(make_plan(read("\n".join(lines))))
    assert refusal.rule == "ordering"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("channel y tile: base 0, counts[", "channel y tile: base 0, counts[1, ", "y has 2 dimensions", "counts[one"),
        ("lowered for 2 ranks:", "lowered for ranks:", "not the head of a lowered program", "lowered for N ranks:"),
        (", tile(i=16, j=16)", ", transport MAIL, tile(i=16, j=16)", "unknown transport 'MAIL'", "one of STORES, TMA"),
        ("    launch: protocol", "    lunch: protocol", "unknown line 'lunch'", "did you mean launch?"),
        ("protocol ", "protocol NO_", "unknown protocol 'NO_", "one of HELPER_KERNELS"),
        ("target cpu: kind cpu", "target cpu: kind fpga", "no kind of processor 'fpga'", "cpu, cuda or hip"),
        ("sms 6", "sms six", "'six' is no number", "a number as Python writes it"),
        ("sms 6", "cores 6", "unknown property 'cores'", "one of kind"),
        ("tensor a: number 0", "tensor q: number 0", "the program has no tensor 'q'", "they are a, b, y, z"),
        ("tensor a: number 0, ", "tensor a: ", "number is missing", "number VALUE"),
        ("tensor a: number 0", "tensor a: number none", "number is no integer: none", "number NUMBER"),
        ("shape[64, 2048]", "shape 3", "shape is missing", "shape[1, 2]"),
        ("channel y tile:", "channel y word:", "no channels 'y word'", "TENSOR tile|peer|rank"),
        ("stage sums:", "stage sum:", "the program has no stage 'sum'", "did you mean sums?"),
        ("on sm,", "on rocks,", "unknown property 'on'", "one of number, resource"),
        ("tile(i=16, j=16)", "tile(i=16)", "tile does not fit the indices of gemm", "tile(i=1, j=1)"),
        ("tile(i=16, j=16)", "tile(i=16, j=0)", "tile does not fit the indices of gemm", "tile(i=1, j=1)"),
        ("        i = tile // 4\n", "", "gemm has no order of i", "i = an expression over `tile`"),
        ("        i = tile // 4\n", "        i = tile //\n", "not an integer expression", "over `tile`"),
        ("        i = tile // 4\n", "        i = tiles // 4\n", "unknown name 'tiles'", "did you mean tile?"),
        ("): gemm\n", "): gem\n", "the program has no stage 'gem'", "did you mean gemm?"),
        ("program product", "schedule product", "", ""),
        ("lowered for 2 ranks:", "lowered for 0 ranks:", "lowered for 0 ranks", "at least one rank"),
        ("numbers(M=64", "numbers(M=-64", "M = -64", "a dimension is"),
        ("numbers(M=64, ", "numbers(", "parameter 'M' has no value", "give M a value"),
        ("numbers(M=64, ", "numbers(M=64, M=64, ", "numbers names something twice", "one value"),
        ("sizes: dtype f32", "sizes: dtype f33", "no dtype 'f33'", "one of f16"),
        ("tensor a: number 0", "tensor a: number 1", "number of a is 1, not 0", "number 0 fits"),
        ("dtype f32, shape[64, 2048]", "dtype f16, shape[64, 2048]", "dtype of a is f16, not f32", "dtype f32"),
        ("shape[64, 2048]", "shape[64, 2049]", "shape of a is [64, 2049], not [64, 2048]", "shape [64, 2048]"),
        ("buffers 1", "buffers 0", "buffers of a is 0, not 1", "buffers 1"),
        ("buffers 1", "buffers 1, buffers 2", "buffers has two values", "one"),
        ("    tensor b:", "    tensor a:", "a second line for tensor a", "one line"),
        ("base 0, counts[4, 4]", "base 1, counts[4, 4]", "base of y tile is 1, not 0", "base 0"),
        ("counts[4, 4]", "counts[4, 5]", "counts of y tile is [4, 5], not [4, 4]", "counts [4, 4]"),
        ("sizes[16, 16]", "sizes[0, 16]", "sizes of y tile are not positive", "sizes[1, 1]"),
        ("finished ", "finished 1", "finished is 1", "finished "),
        ("    channel y tile:", "    channel z tile:", "y has no channels of kind tile", "channel y tile"),
        ("kernel gemm: stream main, position 0", "kernel gemm: stream main, position 1", "position of gemm is 1", "0"),
        ("0, programs 6", "0, programs 0", "programs of gemm is 0, not 1", "programs 1"),
        ("stream main", "stream copy", "kernel gemm is on the stream copy, and its stages are not", "on copy_engine"),
        ("kernel gemm:", "kernel gem:", "name of gem is gem, not gemm", "name gemm"),
        (" range(16): gemm", " range(15): gemm", "gemm has 16 tiles, not 15", "for tile in range(16)"),
        (": gemm\n", ": gemm, sums\n", "2 kernels run sums", "one loop of one kernel"),
        ("stage gemm: number 0", "stage gemm: number 2", "number of gemm is 2, not 0", "number 0"),
        ("extent(i=64", "extent(i=63", "extent i of gemm is 63, not 64", "extent i 64"),
        ("number 2, in gemm", "number 2, numbers[i], in gemm", "tile i of sums_rest is 4, not 1", "tile i 1"),
        ("stage gemm: number 0, ", "stage gemm: number 0, notified_in 1, ", "cannot notify a tile in", "notified_in"),
        ("stage gemm: number 0, ", "stage gemm: number 0, notified_step 2, ", "cannot notify a tile in", "notified_in"),
        ("stage gemm: number 0, ", "stage gemm: number 0, transport TMA, ", "transport of gemm is TMA", "STORES"),
        (
            "num_warps 4, num_stages 3\n        i =",
            "num_warps 3, num_stages 3\n        i =",
            "num_warps of gemm is 3, not 4",
            "num_warps 4",
        ),
        ("        i = tile // 4\n", "        i = tile // 2\n", "the order of i leaves the 4 tiles", "one of 0 to 3"),
        ("        i = tile // 4\n", "        i = tile // 0\n", "the order of i leaves the 4 tiles", "one of 0 to 3"),
        ("        i = tile // 4\n", "        i = tile // 4\n" * 2, "i has two orders", "give each index one"),
        ("        i = tile // 4\n", "        i = tile // 4\n        q = tile\n", "gemm has no index 'q'", "has i, j"),
        ("number 2, in gemm", "number 2, numbers, in gemm", "numbers is missing", "numbers[1, 2]"),
        ("number 2, in gemm", "number 2, numbers i, in gemm", "numbers is missing", "numbers[1, 2]"),
        ("stage gemm: number 0, ", "stage gemm: number 0, flatten 3, ", "flatten has a value", "flatten alone"),
        ("protocol COUNTED", "protocol IN_KERNEL", "protocol is IN_KERNEL", "protocol HELPER_KERNELS"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(old: str, new: str, message: str, hint: str) -> None:
    text = listing(lowered("filled"))
    assert old in text
    with pytest.raises(TileLinkError) as caught:
        read(text.replace(old, new, 1))
    assert message in caught.value.message and hint in (caught.value.hint or "")
    if message:
        assert caught.value.location is not None
        assert caught.value.location.text == text.replace(old, new, 1).splitlines()[caught.value.location.line - 1]


def test_a_text_of_something_else_is_refused() -> None:
    for text in ("", "program", PARTS, PARTS + PARTS, "lowered for 2 ranks:\n", "\0"):
        with pytest.raises(TileLinkError):
            read(text)
    with pytest.raises(ParseError, match="is not a text of programs"):
        parse_lowered(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("texts", [100, pytest.param(400, marks=pytest.mark.thorough)])
def test_a_spoiled_text_is_read_or_refused(texts: int) -> None:
    """Lines that are dropped, repeated or moved, and numbers and letters that are changed."""
    text, chance, refused = listing(lowered("parts", H200)), Random(3), 0
    for _ in range(texts):
        lines = text.splitlines()
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(to, lines[at])
            case 2:
                lines.insert(to, lines.pop(at))
            case _:
                place = chance.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + chance.choice("0a-,([:=.") + lines[at][place + 1 :]
        try:
            read("\n".join(lines))
        except TileLinkError:
            refused += 1
    assert texts / 4 < refused < texts


@pytest.mark.parametrize("texts", [20, pytest.param(60, marks=pytest.mark.thorough)])
def test_a_text_with_another_number_is_refused_or_computes_the_same(texts: int) -> None:
    """Kernels of a lowered text do what the rules prove of it, whoever wrote it."""
    bound = compiler.bound(*RING, ranks=2, dims=DIMS)
    text, chance, refused = listing(bound), Random(1), 0
    head = text.index("    signal_pad:")
    numbers = [one for one in re.finditer(r"\b\d+\b", text) if head < one.start() < text.index("\nprogram ")]
    inputs = random_inputs(bound.source, ranks=2, dims=DIMS, dtype="f32", launches=3, seed=1)
    for _ in range(texts):
        one, wanted = chance.choice(numbers), chance.choice((0, 1, 2, 3, 5, 8, 40))
        changed = f"{text[: one.start()]}{wanted}{text[one.end() :]}"
        try:
            found = make_plan(read(changed))
            verify(found)
        except TileLinkError:
            refused += 1
            continue
        kernel = compiler.Kernel(plan=found, emitted=emit(found.bound, found.thresholds), tables={})
        outputs = kernel.run(inputs, seed=1, max_delay_s=0.001, deadline_s=20).outputs
        for given, made in zip(inputs, outputs, strict=True):
            assert compared(made, reference(bound.source, given, DIMS, dtype="f32")) == "", changed
    assert texts / 2 < refused < texts


PEERS = """program get(M, N):
    x : in symmetric [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    comm take(i: M):
        {take}
"""


@pytest.mark.parametrize("take", [
    "tile_pull_data(y[i, :], x[i, :] @ (rank + 1))",
    "y[i, :] = x[i, :]; tile_push_data(h[i, :] @ (rank + 1), x[i, :])",
    "y[i, :] = x[i, :]; tile_push_data(h[i, :] @ (rank + 1), x[i, :]); producer_tile_notify(h[i, :] @ (rank + 1))",
])  # fmt: skip
@pytest.mark.parametrize("rank", ["(rank + 1)", "7", "(rank - 1)"])
def test_a_rank_that_there_is_not_is_refused(take: str, rank: str) -> None:
    program = compiler.parse(PEERS.format(take=take.replace("; ", "\n        "))).program()
    text = listing(compiler.bound(program, ranks=2, dims={"M": 8, "N": 8}))
    wrong = parse_lowered(text.replace("@ ((rank + 1) % 2)", f"@ {rank}"))
    with pytest.raises(CoverageError, match=r"is on rank (-?\d+), and the ranks are 0 to 1"):
        verify(make_plan(wrong))


@pytest.mark.parametrize(
    ("name", "words"), [("all_reduce", "reuse wait"), ("expert_parallel", "no parts that a launch")]
)
def test_a_lowered_text_is_held_to_the_limits_of_its_dialect(name: str, words: str) -> None:
    module = compiler.load(name)
    program = module.program("all_reduce_two_shot" if name == "all_reduce" else None)
    dims = {"Ms": 16, "N": 16} if name == "all_reduce" else {"M": 8, "H": 16, "C": 8, "k": 2}
    made = compiler.bound(program, ranks=2, dims=dims)
    text = listing(made).replace(f"protocol {made.protocol.name}", "protocol HELPER_KERNELS, dialect triton_dist")
    text = text.replace(
        "dialect triton_dist", "dialect triton_dist, reuse_wait off" if name == "all_reduce" else "dialect triton_dist"
    )
    with pytest.raises(ParseError, match=words):
        parse_lowered(text)


@pytest.mark.parametrize(("old", "new", "words"), [
    ("i = 0", "i = M - 8", "M"),
    ("i = 0", "i = choose(tile, x)", "choice|integer|x"),
    ("i = 0", "i = choose(0, 0, 'a')", "choice|integer"),
    ("sms 132", "sms None", "sms"),
    ("sms 132", "sms 'a'", "sms"),
    ("sms 132", "sms 2.5", "sms"),
    ("target sm_90:", "target True:", "architecture"),
    ("lowered for 1 ranks", f"lowered for {'9' * 5000} ranks", "lowered for"),
    ("range(1)", f"range({'9' * 5000})", "for tile|line"),
])  # fmt: skip
def test_spoiled_numbers_are_refused_where_they_stand(old: str, new: str, words: str) -> None:
    text = "program p(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = x[i]\n"
    made = compiler.bound(compiler.parse(text).program(), ranks=1, dims={"M": 8}, target="sm_90")
    whole = listing(made)
    assert old in whole, whole
    with pytest.raises(TileLinkError, match=words):
        parse_lowered(whole.replace(old, new))


ORDERED = """program copied(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute f(i: M, j: N):
        y[i, j] = x[i, j]

schedule grouped for copied:
    f tile(i=16, j=16), order(i = 0 step -1, j, group(i, 2))
"""


@pytest.mark.parametrize(("old", "new", "message", "hint"), [
    ("j, group(i, 2)", "q, group(i, 2)", "order(i = 0 step -1, q, group(i, 2)) does not fit the indices of f", "i, j"),
    ("group(i, 2)", "group(q, 2)", "order(i = 0 step -1, j, group(q, 2)) does not fit the indices of f", "i, j"),
    ("j, group", "j, i, group", "order(i = 0 step -1, j, i, group(i, 2)) does not fit", "each once: i, j"),
    ("group(i, 2)", "group(i, 0)", "0 is not a size", "at least one"),
    ("j, group(i, 2))", "j, group(i))", "did not expect '))'", ""),
    ("j, group(i, 2))", "j)\n        order(j)", "f has two orders", "one line"),
])  # fmt: skip
def test_a_spoiled_nest_is_refused_at_its_line(old: str, new: str, message: str, hint: str) -> None:
    module = compiler.parse(ORDERED)
    text = listing(compiler.bound(module.program(), module.schedules[0], ranks=1, dims={"M": 64, "N": 64}))
    assert f"\n        {str(module.schedules[0]).split('j=16), ')[1]}" in text and old in text
    with pytest.raises(ParseError) as caught:
        read(text.replace(old, new))
    assert message in caught.value.message and hint in (caught.value.hint or "")
    place = caught.value.location
    assert place is not None and place.text in text.replace(old, new).splitlines() and place.file == "lowered.tl"


def test_an_index_of_two_ranges_is_refused_in_a_lowered_text() -> None:
    program = compiler.parse("""
program p(M = 6):
    n : in  [] <= M
    x : in  [M]
    y : out [2]
    compute f():
        a = zeros(f32)
        b = zeros(f32)
        for (q: M[: n] by 1):
            a += x[q]
        for (q: M[: n] by 1):
            b += x[q]
        y[0] = a
        y[1] = b
""").program()
    text = listing(compiler.bound(program, ranks=2, dims={"M": 6}))
    read(text)
    first, second, rest = text.split("q: M[:n] by 1")
    with pytest.raises(TileLinkError, match=r"the range of q of f is M, not M\[:n\]"):
        read(f"{first}q: M[:n] by 1{second}q: M by 1{rest}")
