# pyright: basic
"""Layers of experts on CPU ranks, beside plain torch, and where their choices go."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import tilelink
from tests.tiers import thorough
from tests.unit.two_ranks import run_on_ranks
from tilelink import compiler
from tilelink.errors import BindingError, CapacityError, DtypeError, ScheduleError
from tilelink.ops import experts, torch_experts

SCENARIOS = {
    "results": (2, ("results", "unequal", "frozen", "repeated", "one_column")),
    "checks": (2, ("capacity", "overflow", "wide_ids", "spread", "few", "many", "mistakes", "unlike_gradients")),
    "compiled": (2, ("traced",)),
    "three ranks": (3, ("results", "unequal", "capacity")),
    "scales": (2, ("scaled", "quantised", "scaled_mistakes")),
    "scales, three ranks": (3, ("scaled",)),
    "scales, five ranks": (5, ("scaled",)),
    "tokens where they are needed": (2, ("rows",)),
    "tokens where they are needed, three ranks": (3, ("rows",)),
    "tokens where they are needed, five ranks": (5, ("rows", "few_rows")),
    "an expert for all, and blocks": (2, ("shared", "shared_few", "blocks")),
    "an expert for all, as an addend": (2, ("shared_many",)),
    "an expert for all, and blocks, five ranks": (5, ("shared", "blocks")),
    "one rank": (1, ("results", "capacity", "shared", "one_column")),
}
"""Numbers of ranks, and what they do."""


SECOND = ("one rank", "addend", "needed, three", "scales, three", "five")
"""Parts of the names of the kinds that are of the second tier."""


@thorough(unless=lambda kind: not any(one in kind for one in SECOND))
@pytest.mark.parametrize("kind", SCENARIOS)
def test_on_ranks(kind: str) -> None:
    ranks, scenarios = SCENARIOS[kind]
    run_on_ranks("tests.unit.experts_scenarios", scenarios, ranks)


def test_tokens_go_where_they_are_needed_if_that_is_few_ranks() -> None:
    sparse = {(ranks, k) for ranks in (2, 4, 8) for k in (1, 2, 4, 8) if experts.needs_few_ranks(ranks, k)}
    assert sparse == {(4, 1), (4, 2), (8, 1), (8, 2), (8, 4)}


@pytest.mark.parametrize(
    ("program", "schedule"), [("moe", "gpu_roles"), ("moe", "gpu_wide_roles"), ("moe_rows", "gpu_wide_roles")]
)
def test_roles_are_for_the_sizes_that_they_take(program: str, schedule: str) -> None:
    module = tilelink.load(program)
    own = module.program(f"{program}_experts")
    chosen = module.schedule(schedule, own)
    taken = set[tuple[int, int]]()
    sizes = [(T, H) for T in (65, 127, 128, 129, 1025) for H in (8, 16, 64, 128, 192, 256, 320, 4096)]
    for T, H in sizes:
        dims = {"M": 64, "H": H, "I": 192, "E": 4, "k": 2, "T": T}
        with suppress(ScheduleError):
            made = compiler.bound(own, chosen, ranks=2, dims=dims, dtype="bf16", target="sm_90")
            assert made.stages["down"].roles is not None
            taken.add((T, H))
    assert taken == {one for one in sizes if experts.fits_roles(*one)} and 0 < len(taken) < len(sizes)


@pytest.mark.parametrize("n_major", [False, True])
def test_products_are_of_kernels_where_these_take_the_sizes(n_major: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tilelink.load("expert_rows")
    own = module.program("n_major_products_of_rows" if n_major else "products_of_rows")
    asked: list[str] = []

    def kernel(name: str) -> Any:
        asked.append(name)
        return lambda *operands, group: operands[1]

    monkeypatch.setattr(torch_experts, "has_kernels", lambda *_: True)
    monkeypatch.setattr(torch_experts, "kernel", kernel)
    monkeypatch.setattr(torch_experts, "grouped", lambda *_: None)
    layer: Any = SimpleNamespace(group=None)
    taken = dict[bool, int]()
    for T, K, N in [(T, K, N) for T in (65, 128, 129) for K in (8, 64, 72, 192) for N in (8, 16, 64, 192, 320, 388)]:
        kernels = False
        with suppress(ScheduleError):
            dims = {"E": 3, "T": T, "K": K, "N": N}
            made = compiler.bound(own, module.schedule("gpu", own), ranks=2, dims=dims, dtype="bf16", target="sm_90")
            kernels = made.stages["product"].roles is not None
        w = torch.empty((3, K, N) if n_major else (3, N, K))
        asked.clear()
        torch_experts.product(torch.empty(T, K), w, SimpleNamespace(starts=None), layer, n_major=n_major)  # type: ignore[arg-type]
        assert asked == [own.name] * kernels, (T, K, N)
        taken[kernels] = taken.get(kernels, 0) + 1
    assert min(taken.values()) >= 4 and len(taken) == 2


@pytest.mark.parametrize("tokens", [None, 8])
def test_all_ranks_call_for_as_many_blocks(tokens: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are collective: a rank with fewer tokens than another one makes some for none.

    All of a call is compared: with other numbers of tokens or blocks, blocks may have as many tokens.
    """
    called: list[tuple[int, int | None]] = []
    said: list[Any] = []

    def call(_: str, operands: tuple[torch.Tensor, ...], *others: Any) -> torch.Tensor:
        called.append((operands[0].shape[0], others[2]))
        return operands[0]

    monkeypatch.setattr(experts, "_call", call)
    monkeypatch.setattr(experts, "members_of", lambda group: group)
    monkeypatch.setattr(experts, "agree", lambda kind, *_: said.append(kind))
    for rows, parts in ((5, [2, 2, 1, 0]), (7, [2, 2, 2, 1])):
        x, ids = torch.arange(rows * 4.0).view(rows, 4), torch.zeros(rows, 2, dtype=torch.int64)
        operands = x, ids, ids.float(), torch.ones(1, 6, 4), torch.ones(1, 4, 3)
        y = experts.expert_parallel(*operands, tokens=tokens, blocks=4)
        assert torch.equal(y, x) and called == [(part, 2) for part in parts]
        called.clear()
        whole = f"{rows} rows" if tokens is None else "tokens=8"
        assert said.pop() == experts.CallKind("expert_parallel", (whole, "blocks=4")) and not said


def test_choices_beyond_a_capacity_are_raised_so_many_calls_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the host could see them: ranks raise in one call. What graphs had is seen by the calls after them."""
    sizes: Any = SimpleNamespace(op="moe", capacity=5, device=torch.device("cpu"))
    monkeypatch.setattr(experts._Watch, "every", [])
    watch = experts._Watch(sizes, later=3)

    def raising(*choices: int) -> list[bool]:
        raised: list[bool] = []
        for most in choices:
            try:
                watch.check()
                raised.append(False)
            except CapacityError as error:
                assert "9 choices" in str(error)
                raised.append(True)
            watch.see(torch.tensor([most, 1]))
        return raised

    assert raising(9, 1, 1, 1, 1, 1, 1) == [False, False, False, True, False, False, False]
    monkeypatch.setattr(experts, "is_capturing", lambda: True)
    assert raising(9) == [False]
    monkeypatch.setattr(experts, "is_capturing", lambda: False)
    assert raising(1, 1, 1, 1, 1, 1, 1) == [False, False, False, True, False, False, False]
    watch.see(torch.tensor([9]))
    with pytest.raises(CapacityError):
        watch.require()
    watch.require()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["drawn", "one", "none"])
def test_choices_lie_by_expert(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    ids = {
        "drawn": torch.randint(-1, 8, (40, 2)), "one": torch.full((40, 2), 4), "none": torch.full((40, 2), -1),
    }[kind].to(dtype)  # fmt: skip
    counts, starts, order, place = tilelink.routing.by_expert(ids, 5, first=2)
    flat = ids.flatten()
    wanted = [i for e in range(2, 7) for i in range(flat.numel()) if flat[i] == e]
    wanted += [i for i in range(flat.numel()) if not 2 <= flat[i] < 7]
    assert order.tolist() == wanted
    assert place.shape == ids.shape
    assert all(place.flatten()[i] == spot for spot, i in enumerate(wanted))
    assert counts.tolist() == [int((flat == e).sum()) for e in range(2, 7)]
    assert starts.tolist() == [sum(counts.tolist()[:e]) for e in range(6)]
    assert {one.dtype for one in (counts, starts, order, place)} == {torch.int32}


def test_places_are_those_of_the_program() -> None:
    """The library's program for kernels gives the same places."""
    torch.manual_seed(4)
    ids = torch.randint(-1, 6, (5, 16), dtype=torch.int32)
    kernel = compiler.compile(tilelink.load("sort_by_expert").program(), ranks=1, dims={"NB": 5, "B": 16, "E": 6})
    (found,) = kernel([{"expert": ids}])
    routing = tilelink.routing.by_expert(ids, 6)
    assert torch.equal(found["count"], routing.counts)
    assert torch.equal(found["source"], routing.order)
    assert torch.equal(found["place"], routing.place)


def test_programs_do_what_torch_does_between_products() -> None:
    """Of rows of experts: what they are taken from, the gate and its gradients, and sums; other rows have any value."""
    torch.manual_seed(5)
    E, T, inner, N, k, H = 3, 21, 12, 10, 3, 9
    starts = torch.tensor([0, 4, 4, 17], dtype=torch.int32)
    both, scale, dplain, rows = torch.randn(T, 2 * inner), torch.rand(T), torch.randn(T, inner), torch.randn(T, H)
    both[17:] = dplain[17:] = rows[17:] = float("nan")
    order = torch.randperm(N * k)[:T].int()
    place = torch.full((N * k,), T - 1, dtype=torch.int32)
    place[order[:17].long()] = torch.arange(17, dtype=torch.int32)
    place = place.view(N, k)
    layer = torch_experts.Layer(group=Alone(), first=0, activation="silu")  # type: ignore[arg-type]
    chosen = torch_experts.Chosen(torch.randn(N, H), torch.rand(N, k), starts, order, place)

    def ran(name: str, dims: dict[str, int], **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        program = compiler.library_module("expert_rows").program(name)
        return compiler.compile(program, ranks=1, dims=dims)([inputs])[0]

    def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.testing.assert_close(found[:17].flatten(1) if found.dim() > 2 else found[:17], wanted[:17])

    of_rows = {"E": E, "T": T}
    taken = ran("gathered_rows", {**of_rows, "N": N, "H": H}, starts=starts, x=chosen.x, rows=order // k)
    same(taken["y"], torch_experts.rows_of(chosen.x, order // k, chosen, layer))
    parts = both.unflatten(1, (2, -1))
    w = torch.randn(E, H, inner)
    for name, weights in (("products_of_rows", w.transpose(1, 2).contiguous()), ("n_major_products_of_rows", w)):
        made = ran(name, {**of_rows, "K": H, "N": inner}, starts=starts, x=taken["y"], w=weights)
        same(made["y"], torch_experts.grouped(taken["y"], w, starts))
    gated = ran("gated_rows", {**of_rows, "I": inner}, starts=starts, both=parts, scale=scale)
    same(gated["hidden"], torch_experts.gated(both, scale, chosen, layer))
    made = ran("gated_rows_gradients", {**of_rows, "I": inner}, starts=starts, both=parts, scale=scale, dhidden=dplain)
    wanted = torch_experts.gated_gradients(both, scale, dplain, chosen, layer)
    for name, one in zip(("hidden", "dboth", "dscale"), wanted, strict=True):
        same(made[name], one)
    sums = ran("sums_of_rows", {**of_rows, "N": N, "k": k, "H": H}, starts=starts, rows=rows, place=place)
    torch.testing.assert_close(sums["y"], torch_experts.combine(rows, chosen, layer))


class Alone:
    """A group of one rank, of which nothing else is asked."""

    def size(self) -> int:
        return 1


def test_ids_are_integers_and_experts_are_there() -> None:
    with pytest.raises(DtypeError, match=r"ids of experts are torch\.float32"):
        tilelink.routing.by_expert(torch.zeros(3), 2)
    ids: Any = torch.tensor([0, 2, 1])
    for count, first, text in (
        (0, 0, "experts of by_expert is 0"), (2.5, 0, "experts of by_expert is 2.5"), ("3", 0, "is '3'"),
        (2**31, 0, "is 2147483648"), (3, -1, "first of by_expert is -1"), (3, 0.5, "first of by_expert is 0.5"),
    ):  # fmt: skip
        with pytest.raises(BindingError, match=text):
            tilelink.routing.by_expert(ids, count, first=first)  # type: ignore[arg-type]
    assert tilelink.routing.by_expert(ids, cast(Any, np.int64(3))).counts.tolist() == [1, 1, 1]


def test_many_experts_are_sorted_too() -> None:
    ids = torch.arange(700, dtype=torch.int32).flip(0)
    assert tilelink.routing.by_expert(ids, 600).order[:600].tolist() == list(range(699, 99, -1))


def test_tensors_of_tokens_are_copied_only_where_some_are_not_there() -> None:
    x, ids = torch.ones(3, 4), torch.zeros(3, 2, dtype=torch.int32)
    sizes: Any = SimpleNamespace(rows=3, padded=3)
    assert all(one is other for one, other in zip(experts._padded(sizes, x, ids, x), (x, ids, x), strict=True))
    sizes.padded = 5
    more, others, _ = experts._padded(sizes, x, ids, x)
    assert more.shape == (5, 4) and not more[3:].any() and others[3:].tolist() == [[-1, -1], [-1, -1]]


def test_calls_of_ranks_are_compared_without_the_number_of_a_device() -> None:
    """Each rank has a GPU of its own."""
    sizes = [
        experts._Sizes(
            op="moe", rows=8, tokens=None, capacity=None, activation="silu", schedule="", H=16, k=2, E=4, inner=8,
            scaled=False, dtype=torch.bfloat16, device=torch.device("cuda", number),
        )
        for number in range(2)
    ]  # fmt: skip
    assert sizes[0].words() == sizes[1].words()
    assert sizes[0].words() != replace(sizes[0], device=torch.device("cpu")).words()
