# pyright: basic
"""Forms that the emitter once chose: the lowered program has them, and kernels follow what it says or are refused."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.lowered import parse_lowered
from tests.lowering.test_roles_epilogue import BODY
from tests.lowering.test_roles_epilogue import bound as roles
from tilelink import compiler
from tilelink.backend import consumer_values
from tilelink.backend.emit import emit
from tilelink.errors import EmitError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan

PULL = """program pull(M, N):
    x : in symmetric [M, N]
    y : out [M, N]
    z : symmetric [ranks, M, N]

    compute add(i: M, j: N):
        acc = zeros(f32)
        for (p: ranks):
            acc += x[i, j] @ p
        y[i, j] = acc
        for (q: ranks):
            tile_push_data(z[rank, i, j] @ q, acc)
            producer_tile_notify(z[rank, i, j] @ q)

schedule small for pull:
    add on sm, tile(i=8, j=256), num_warps 4
"""


def pull(*loops: str) -> Bound:
    """The lowered program, with other forms of its loops."""
    module = compiler.parse(PULL)
    program = module.program()
    sizes = {"M": 64, "N": 256}
    made = compiler.bound(program, module.schedules[0], ranks=4, dims=sizes, dtype="bf16", target="sm_90")
    return made if not loops else replace(made, stages={"add": replace(made.stages["add"], loops=loops)})


def source(made: Bound) -> str:
    return emit(made, make_plan(made).thresholds).text


def test_the_lowered_program_has_the_forms_and_kernels_follow_them() -> None:
    made = pull()
    assert "loops[unrolled, in order]" in listing(made)
    assert parse_lowered(listing(made)).stages == made.stages
    heads = {
        "unrolled": "for p in tl.static_range(0, RANKS):",
        "ahead 2": "for p in tl.range(0, RANKS, num_stages=2):",
        "in order": "for p in tl.range(0, RANKS, num_stages=1):",
        "plain": "for p in range(0, RANKS):",
    }
    for form, head in heads.items():
        text = source(pull(form, "in order"))
        assert head in text and "for q in tl.range(0, RANKS, num_stages=1):" in text
    assert source(made) == source(pull("unrolled", "in order"))


@pytest.mark.parametrize(
    "loops",
    [("unrolled", "plain"), ("unrolled", "ahead 2"), ("unrolled",), ("together", "in order"), ("ahead", "in order")],
    ids=["out of order", "ahead of stores", "one form for two loops", "no notify", "an unknown form"],
)
def test_forms_that_kernels_cannot_have_are_refused(loops: tuple[str, ...]) -> None:
    with pytest.raises(EmitError, match=r"a loop of add has no form|loops inside of tiles|not one of notifies"):
        source(pull(*loops))


NOTIFY = """program announce(M, N):
    x : in [M, N]
    z : symmetric [ranks, M, N]
    y : out [M, N]

    comm send(i: M):
        for (q: ranks):
            tile_push_data(z[rank, i, :] @ q, x[i, :])
        for (q: ranks):
            producer_tile_notify(z[rank, i, :] @ q)

    compute add(i: M, j: N):
        consumer_tile_wait(z[:, i, j])
        y[i, j] = sum(z[:, i, j], axis=0)

schedule fine for announce:
    send on sm, tile(i=16)
    add on sm, tile(i=16, j=64)
    z channel(i=16, j={columns})
"""


@pytest.mark.parametrize("columns", [256, 64])
def test_notifies_of_several_counters_are_not_made_together(columns: int) -> None:
    module = compiler.parse(NOTIFY.format(columns=columns))
    sizes = {"M": 64, "N": 256}
    made = compiler.bound(module.program(), module.schedules[0], ranks=4, dims=sizes, target="sm_90")
    loops = made.stages["send"].loops
    assert loops[-1] == ("together" if columns == 256 else "in order")
    other = replace(made.stages["send"], loops=(*loops[:-1], "together"))
    both = replace(made, stages={**made.stages, "send": other})
    if columns == 256:
        assert "notify_each(" in source(both)
    else:  # all but the first one would be left out
        with pytest.raises(EmitError, match="not one of notifies, of a counter each"):
            source(both)


MULTIPLY = """program multiply(M, N, K):
    x : in [M, K]
    w : in [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule s for multiply:
    gemm on sm, tile(i=64, j=64, k=64)
"""


def multiply(boxes: frozenset[str] | None = None, K: int = 256) -> Bound:
    module = compiler.parse(MULTIPLY)
    sizes = {"M": 128, "N": 128, "K": K}
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims=sizes, dtype="bf16", target="sm_90")
    own = made.stages["gemm"]
    return made if boxes is None else replace(made, stages={"gemm": replace(own, boxes=boxes)})


def test_operands_are_loaded_as_boxes_where_the_lowered_program_says_so() -> None:
    made = multiply()
    assert "boxes[w, x]" in listing(made)
    assert parse_lowered(listing(made)).stages == made.stages
    assert len(re.findall(r"_boxes_64x64\.load\(", source(made))) == 2
    only = source(multiply(frozenset({"x"})))
    assert "x_boxes_64x64.load(" in only and "w_boxes" not in only and "tl.load(w +" in only
    odd = multiply(K=100)  # rows of 200 bytes
    assert not odd.stages["gemm"].boxes
    assert source(odd) == source(multiply(frozenset({"x", "w"}), K=100))  # no form that kernels cannot have


WITHOUT_RESIDUAL = BODY.replace("if ranks > 1:\n    acc = acc + r[i, j]\n", "")


def with_parts(prefetched: frozenset[str] | None = None) -> Bound:
    """A stage with roles whose consumers add two tiles of f32, with other tensors that they prefetch."""
    made = roles(WITHOUT_RESIDUAL, dtype=" f32")
    own = made.stages["gemm"]
    own = own if prefetched is None else replace(own, prefetched=prefetched)
    return replace(made, stages={**made.stages, "gemm": own})


def test_consumers_prefetch_what_the_lowered_program_says() -> None:
    made = with_parts()
    assert "prefetched[parts]" in listing(made)
    assert parse_lowered(listing(made)).stages == made.stages
    assert "parts_next = gl.load(" in source(made)
    assert "parts_next" not in source(with_parts(frozenset()))


def test_tiles_that_may_not_be_are_not_prefetched(monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_parts()
    monkeypatch.setattr(consumer_values, "may_be_prefetched", lambda *_: False)  # as of tiles that are cut
    with pytest.raises(EmitError, match="a tile is prefetched that may be cut"):
        source(made)


COUNTED = """
program total(B = 4, L = 20, N = 64):
    count : in  [B] <= L
    x     : in  [B, L, N]
    y     : out [B, N]

    compute add(b: B by 1, n: N):
        acc = zeros(f32)
        for (l: L[: count[b]]):
            acc += sum(x[b, l, n], axis=0)
        y[b, n] = acc

schedule one for total on sm_90:
    add on sm, tile(n={n}, l={l})
"""


@pytest.mark.parametrize(
    "n, l, length, form",
    [
        (64, 1, 20, "ahead 8"),  # 256 bytes: as many as there may be
        (2048, 1, 20, "ahead 4"),  # as many as are 32 KB
        (64, 1, 2, "ahead 2"),
        (64, 2, 20, ""),  # elements that are reduced meet in shared memory
    ],
)
def test_a_counted_loop_has_the_loads_of_some_iterations_in_flight(n: int, l: int, length: int, form: str) -> None:  # noqa: E741
    made = compiler.parse(COUNTED.format(n=n, l=l))
    program, dims = made.program(), {"B": 4, "L": length, "N": 2048}
    bound = compiler.bound(program, made.schedules[0], ranks=1, dims=dims, dtype="f32", target="sm_90")
    assert bound.stages["add"].loops == ((form,) if form else ())
    loop = next(line for line in source(bound).splitlines() if "for l in" in line)
    count = f"0, tl.cdiv(end_l, {l if l == 1 else 'BLOCK_L'})"
    assert (f"tl.range({count}, num_stages={form.removeprefix('ahead ')})" if form else f"range({count})") in loop
