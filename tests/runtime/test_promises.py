"""Index tensors that break their promises are found before a launch: by the check on any device, by the reference."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from tests.reference.launch_texts import EXPERTS, MOE
from tests.runtime.fake_gpu import FakeGpu
from tests.tiers import thorough
from tilelink import compiler, data
from tilelink.artifact import OPERATIONS, PROMISES, Constant, Entry, Operation, OwnCoordinate, Promise, from_json
from tilelink.compiler.cpu import Kernel
from tilelink.compiler.cuda import gpu_artifact
from tilelink.compiler.promises import promises_of
from tilelink.errors import BindingError, DataError
from tilelink.ir.program import PROPERTIES
from tilelink.reference.trial import random_inputs
from tilelink.runtime import promises as promises_module
from tilelink.runtime.promises import Broken, broken_promise
from tilelink.settings import override

TEXT = """
program p(M, T, E):
    m      : in  [] <= M
    n      : in  [ranks] <= M
    rows   : in  [T] < M
    place  : in  [T] < T distinct
    steps  : in  [2, T] < M rising
    starts : in  [2, E + 1] <= T offsets
    owner  : in  [T, 2] < ranks
    slot   : in  [T, 2] <= n[(owner + 1) % ranks]
    far    : in  [T, 2] < n[owner + 1] * (m + 1)
    y      : out [T]

    compute f(i: T):
        y[i] = 1.0
"""
DIMS, RANKS = {"M": 6, "T": 5, "E": 3}, 3
# A change of an entry of rank 1 and the error of it
CASES = [
    ("m", (), 7, "m of rank 1 is 7", "[0, 7)"),
    ("m", (), -1, "m of rank 1 is -1", "[0, 7)"),
    ("n", (2,), 9, "n[2] of rank 1 is 9", "[0, 7)"),
    ("rows", (3,), 6, "rows[3] of rank 1 is 6", "[0, 6)"),
    ("rows", (4,), -2, "rows[4] of rank 1 is -2", "[0, 6)"),
    ("place", (4,), 5, "place[4] of rank 1 is 5", "[0, 5)"),
    ("place", (3,), None, "place[3] of rank 1 is", "distinct"),
    ("steps", (1, 2), 0, "steps[1, 2] of rank 1 is 0", "rising"),
    ("starts", (1, 0), 1, "starts[1, 0] of rank 1 is 1", "the first of"),
    ("starts", (1, 2), 0, "starts[1, 2] of rank 1 is 0", "offsets"),
    ("slot", (2, 1), 99, "slot[2, 1] of rank 1 is 99", "n[(owner + 1) % ranks]"),
    ("slot", (0, 0), -1, "slot[0, 0] of rank 1 is -1", "n[(owner + 1) % ranks]"),
    ("far", (4, 0), 50, "far[4, 0] of rank 1 is 50", "n[owner + 1] * (m + 1)"),
]


def promises(text: str, dims: dict[str, int]) -> tuple[Promise, ...]:
    return promises_of(compiler.bound(compiler.parse(text).program(), ranks=RANKS, dims=dims))


def drawn(text: str, dims: dict[str, int], seed: int, routing: str) -> list[dict[str, torch.Tensor]]:
    program = compiler.parse(text).program()
    options: dict[str, Any] = {"ranks": RANKS, "dims": dims, "dtype": "f32", "seed": seed, "routing": routing}
    return random_inputs(program, launches=1, **options)[0]


def spoiled(name: str, at: tuple[int, ...], value: int | None) -> list[dict[str, torch.Tensor]]:
    given = drawn(TEXT, DIMS, 1, "uniform")
    given[1]["steps"] = torch.tensor([[0, 1, 1, 2, 3]] * 2, dtype=torch.int32)
    given[1]["starts"] = torch.tensor([[0, 1, 3, 4]] * 2, dtype=torch.int32)
    tensor = given[1][name].clone()
    tensor[at] = int(tensor[0]) if value is None else value
    given[1][name] = tensor
    return given


@thorough(unless=lambda text, routing: text is MOE or routing == "uniform")
@pytest.mark.parametrize("routing", ["uniform", "zipf:2", "one", "empty", "full"])
@pytest.mark.parametrize(("text", "dims"), [(TEXT, DIMS), (MOE, {"Ms": 5, "K": 2, "N": 2, "E": 4, "T": 9})])
def test_random_inputs_keep_all_promises(text: str, dims: dict[str, int], routing: str) -> None:
    for seed in range(5):
        for rank, given in enumerate(drawn(text, dims, seed, routing)):
            assert broken_promise(promises(text, dims), given, rank) is None


@pytest.mark.parametrize(("name", "at", "value", "message", "why"), CASES)
def test_a_broken_promise_is_found(name: str, at: tuple[int, ...], value: int | None, message: str, why: str) -> None:
    given = spoiled(name, at, value)
    assert broken_promise(promises(TEXT, DIMS), given[0], 0) is None
    broken = broken_promise(promises(TEXT, DIMS), given[1], 1)
    assert isinstance(broken, Broken) and (broken.tensor, broken.index) == (name, at)
    error = broken.error()
    assert message in error.message and error.hint is not None
    assert why in error.hint and f"{name} : in [" in error.hint


@pytest.mark.parametrize(("name", "at", "value", "message", "why"), CASES)
def test_the_reference_and_cpu_ranks_refuse_it(
    name: str, at: tuple[int, ...], value: int | None, message: str, why: str
) -> None:
    given, program = spoiled(name, at, value), compiler.parse(TEXT).program()
    kernel = Kernel(plan=compiler.plan(program, ranks=RANKS, dims=DIMS), emitted=cast("Any", None), tables={})
    for launch in (lambda: kernel.run([given]), lambda: compiler.reference(program, given, dims=DIMS)):
        with pytest.raises(BindingError, match=re.escape(message)) as caught:
            launch()
        assert caught.value.location is not None and caught.value.location.line > 2
        assert caught.value.hint is not None and why.removesuffix(" of") in caught.value.hint


def test_the_first_of_several_is_named_and_the_host_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = spoiled("slot", (3, 0), 77)[1]
    given["rows"][2:] = 40
    waits: list[int] = []
    real = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: waits.append(1) or real(self))
    broken = broken_promise(promises(TEXT, DIMS), given, 1)
    assert broken is not None and (broken.tensor, broken.index, broken.value) == ("rows", (2,), 40)
    assert len(waits) == 1


PARTS = """
program p(M, N):
    n  : in  [] <= M
    ns : in  [3] <= M
    x  : in  [M[: 2 * n], N]
    y  : out [M[: n + n], N]
    z  : out [3, M[: ns - 1], N]

    compute f(i: M[: n * 2], j: N):
        y[i, j] = x[i, j]
    compute g(s: 3 by 1, i: M[: ns[s] - 1], j: N):
        z[s, i, j] = 1.0
"""
TOO_LONG = [
    ({"n": 4}, "the end of dimension 0 of x of rank 1 is 8", "it is 6 at most"),
    ({"ns": [0, 6, 6], "z": "ns + 3"}, "the end of dimension 1 of z[1] of rank 1 is 9", "it is 6 at most"),
]


@pytest.mark.parametrize(("entries", "message", "why"), TOO_LONG)
def test_a_part_that_is_longer_than_its_dimension_is_found(entries: dict[str, Any], message: str, why: str) -> None:
    text = PARTS.replace("ns - 1", entries["z"]).replace("ns[s] - 1", entries["z"].replace("ns", "ns[s]")) if (
        "z" in entries
    ) else PARTS  # fmt: skip
    dims = {"M": 6, "N": 2}
    given = [
        {"n": torch.tensor(3).int(), "ns": torch.tensor([0, 2, 3]).int(), "x": torch.ones(6, 2)} for _ in range(RANKS)
    ]
    assert broken_promise(promises(text, dims), given[1], 1) is None
    for name in ("n", "ns"):
        if name in entries:
            given[1][name] = torch.tensor(entries[name], dtype=torch.int32)
    broken = broken_promise(promises(text, dims), given[1], 1)
    assert broken is not None and message in str(broken.error()) and why in str(broken.error())
    program = compiler.parse(text).program()
    kernel = Kernel(plan=compiler.plan(program, ranks=RANKS, dims=dims), emitted=cast("Any", None), tables={})
    for launch in (lambda: kernel.run([given]), lambda: compiler.reference(program, given, dims=dims)):
        with pytest.raises(BindingError, match=re.escape(message)) as caught:
            launch()
        assert caught.value.location is not None and caught.value.hint is not None and why in caught.value.hint


@pytest.mark.parametrize("routing", ["uniform", "zipf:2", "one", "empty", "full", "zeros"])
def test_random_inputs_are_given_no_more_than_there_is(routing: str) -> None:
    dims = {"M": 6, "N": 2}
    for seed in range(5):
        for rank, given in enumerate(drawn(PARTS, dims, seed, routing)):
            assert broken_promise(promises(PARTS, dims), given, rank) is None


OF_RANK = """
program p(M, N):
    n : in  [] <= M
    x : in  [M, N]
    y : out [M[: n * rank], N]

    compute f(i: M[: n * rank], j: N):
        y[i, j] = x[i, j] * 2.0
"""


def test_a_divisor_that_a_broken_promise_makes_zero_is_no_error_of_its_own() -> None:
    """With m = -1 the end of y divides by zero: what is refused is m, by launches and by the reference alike."""
    program = compiler.parse("""
program p(M = 6):
    n : in  [] <= M
    m : in  [] <= M
    y : out [M[: n // (m + 1)]]
    z : out [M[: n % (m + 1)]]
    compute f(i: M[: n // (m + 1)]):
        y[i] = 1.0
    compute g(i: M[: n % (m + 1)]):
        z[i] = 1.0
""").program()
    dims = {"M": 6}
    kernel = Kernel(plan=compiler.plan(program, ranks=1, dims=dims), emitted=cast("Any", None), tables={})
    given = [{"n": torch.tensor(3).int(), "m": torch.tensor(-1).int()}]
    for launch in (lambda: kernel.run([given]), lambda: compiler.reference(program, given, dims=dims)):
        with pytest.raises(BindingError, match="m of rank 0 is -1"):
            launch()


def test_an_end_may_depend_on_the_rank() -> None:
    """So may what it promises: the entries that rank 1 takes are too many for rank 2."""
    program, dims = compiler.parse(OF_RANK).program(), {"M": 6, "N": 2}
    kernel = compiler.compile(program, ranks=RANKS, dims=dims)
    given = [{"n": torch.tensor(n).int(), "x": torch.rand(6, 2)} for n in (6, 4, 3)]
    own = promises(OF_RANK, dims)
    assert [broken_promise(own, one, rank) for rank, one in enumerate(given)] == [None] * RANKS
    for rank, (made, one) in enumerate(zip(kernel(given), given, strict=True)):
        rows = rank * int(one["n"])
        assert torch.equal(made["y"][:rows], one["x"][:rows] * 2.0)
    broken = broken_promise(own, given[1], 2)
    assert broken is not None and "the end of dimension 0 of y of rank 2 is 8" in str(broken.error())
    artifact = gpu_artifact(kernel.plan)
    assert from_json(artifact.to_json().encode(), "the text") == artifact
    given[2]["n"] = torch.tensor(4).int()
    for launch in (lambda: kernel(given), lambda: compiler.reference(program, given, dims=dims)):
        with pytest.raises(BindingError, match="the end of dimension 0 of y of rank 2 is 8"):
            launch()


def test_entries_that_no_dimension_has_room_for_are_not_drawn() -> None:
    """Nothing is there to be halved."""
    with pytest.raises(
        BindingError, match=r"no entries were found with which there is n \+ 7 of dimension 0 of y"
    ) as told:
        drawn(OF_RANK.replace("n * rank", "n + 7"), {"M": 6, "N": 2}, 1, "uniform")
    assert told.value.location is not None and "say min(n + 7, M)" in (told.value.hint or "")


SLOT = (OwnCoordinate(dim=0), Entry(tensor="m", modulo=()), Operation(op="+"))
UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "no tensor": ({"tensor": "q"}, "a promise of 'q', which is no index tensor"),
    "no integers": ({"tensor": "v"}, "a promise of 'v', which is no index tensor"),
    "an output": ({"tensor": "y"}, "a promise of 'y', which is no index tensor"),
    "nothing": ({"bound": ()}, "the bound of 'rows' is no number"),
    "two numbers": ({"bound": (Constant(value=1), Constant(value=2))}, "the bound of 'rows' is no number"),
    "no operand": ({"bound": (Constant(value=1), Operation(op="+"))}, "the bound of 'rows' is no number"),
    "a late operand": (
        {"bound": (Constant(value=1), Operation(op="+"), Constant(value=1))},
        "the bound of 'rows' is no number",
    ),
    "no operation": ({"bound": (*SLOT[:2], Operation(op="exec"))}, "the bound of 'rows' is no number"),
    "no dimension": ({"bound": (OwnCoordinate(dim=1),)}, "the bound of 'rows' is no number"),
    "no entry": ({"bound": (Entry(tensor="n", modulo=(True,)),)}, "the bound of 'rows' is no number"),
    "dimensions": (
        {"bound": (Constant(value=1), Entry(tensor="m", modulo=(True,)))},
        "the bound of 'rows' is no number",
    ),
    "another tensor": ({"bound": (Entry(tensor="q", modulo=()),)}, "the bound of 'rows' is no number"),
    "no dimension of it": ({"part": (9,)}, "a promise of 'rows', which has no dimension of this extent"),
    "no part": ({"part": ()}, "a promise of 'rows', which has no dimension of this extent"),
    "a coordinate of the part": ({"part": (5,), "bound": (OwnCoordinate(dim=0),)}, "the bound of 'rows' is no number"),
    "property": ({"properties": ("sorted",)}, "'rows' promises sorted"),
}


def test_a_promise_of_an_artifact_is_checked_when_it_is_read() -> None:
    program = compiler.parse(
        TEXT.replace("    y      : out [T]", "    v      : in  [T]\n    y      : out [T]")
    ).program()
    artifact = gpu_artifact(compiler.plan(program, ranks=RANKS, dims=DIMS))
    assert from_json(artifact.to_json().encode(), "the text") == artifact
    own = next(one for one in artifact.promises if one.tensor == "rows")
    good = replace(artifact, promises=(replace(own, bound=SLOT),))
    assert from_json(good.to_json().encode(), "the text").promises == good.promises
    for changes, said in UNFIT.values():
        wrong = replace(artifact, promises=(replace(own, **changes),))
        with pytest.raises(DataError, match=said):
            from_json(wrong.to_json().encode(), "the text")


def test_operations_of_bounds_are_those_that_are_computed() -> None:
    assert {*promises_module.OPERATIONS} == OPERATIONS and {*PROPERTIES} == PROMISES


def test_promises_are_plain_data() -> None:
    own = promises(EXPERTS, {"M": 4, "H": 2, "C": 3, "k": 2})
    again = data.checked(tuple[Promise, ...], json.loads(json.dumps(data.plain(own))), "promises")
    assert again == own and [one.tensor for one in own] == ["count", "to", "owner", "slot"]


@pytest.mark.parametrize("check", [True, False])
def test_gpu_ranks_check_before_they_issue_anything_if_they_are_told(
    check: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, dims, gpu = compiler.parse(TEXT).program(), DIMS, FakeGpu(monkeypatch)
    artifact = gpu_artifact(compiler.plan(program, ranks=RANKS, dims=dims, target="sm_90"))
    given = spoiled("slot", (2, 1), 99)
    with override(check=check):
        built = gpu.built(artifact, 1)
    gpu.issued.clear()
    if check:
        with pytest.raises(BindingError, match=re.escape("slot[2, 1] of rank 1 is 99")):
            built(given[1])
        assert not gpu.issued
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)  # the host must not wait there
    built(given[1])
    assert {k.name for k in artifact.kernels} <= {*gpu.issued}
