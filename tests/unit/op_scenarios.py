# pyright: basic
"""Scenarios of `tilelink.op` on CPU ranks: `python -m tests.unit.op_scenarios NAME ...`, with torch's variables."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import tilelink
from tests.gpu import ops_attention
from tests.gpu.lockstep import Checks
from tests.own_programs import FORWARD, MODULE, SEND_BACK, weight_gradient
from tests.unit.ops_scenarios import every, main, near
from tilelink import compiler, ops
from tilelink.errors import BindingError, DtypeError, RankError, ShapeError, TileLinkError, UnknownNameError
from tilelink.ops import context_parallel, decode, reference_launch, torch_attention
from tilelink.ops import own as own_module
from tilelink.ops.custom import schedule_text

Tensor = torch.Tensor
MS, N, K = 6, 5, 8


def tensors(seed: int = 0) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """x and w of each rank, and a bias."""
    return every(MS, K, seed=seed + 1), every(N, K, seed=seed + 2), every(N, seed=seed + 3)[0]


@contextmanager
def counting() -> Any:
    """Counts what is made at first calls: the names of the programs' schedules."""
    made: list[str] = []
    plan = compiler.plan

    def counted(program: Any, schedule: Any, **options: Any) -> Any:
        made.append(schedule.name if schedule else "default")
        return plan(program, schedule, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_launch.compiler, "plan", counted)
        yield made


# Scenarios ---------------------------------------------------------------------------------------------------


def results() -> None:
    """Sizes from shapes, inputs by place and by name, what is left out and chosen, several outputs, one making."""
    rank = dist.get_rank()
    xs, ws, bias = tensors()
    x, w, other = xs[rank], ws[rank], xs[1 - rank]
    own = tilelink.op(FORWARD, "fine")
    with counting() as made:
        y, taken = found = own(x, w, scale=0.5)
        assert type(found).__name__ == "neighbour_product" and found.y is y and found.xs is taken
        near(y, other @ w.T * 0.5)
        assert torch.equal(taken, other)
        assert made == ["fine"]
        near(own(w=w, x=x, scale=0.5).y, y)
        near(own(x, w=w, scale=np.float32(0.5)).y, y)
        near(own(x * 2, w, scale=0.5).y, y * 2)
        assert made == ["fine"], "the same sizes, numbers and choices are made once"
        near(own(x, w, scale=2.0).y, y * 4)
        near(own(x, w, bias, scale=0.5, activation="relu").y, torch.relu(y + bias))
        near(own(x, w, bias=bias, scale=0.5).y, y + bias)
        near(own(x[:3], w[:2], scale=0.5).y, y[:3, :2])
        assert made == ["fine"] * 5
        near(own(x, w, scale=0.5, schedule="default").y, y)
        near(own(x, w, scale=0.5, schedule=tilelink.schedule(FORWARD, "mine").tile("send", i=2)).y, y)
        near(own(x, w, scale=0.5, schedule=str(tilelink.schedule(FORWARD, "text").tile("send", i=3))).y, y)
        assert made[5:] == ["default", "mine", "text"]
        ops.clear()
        own(x, w, scale=0.5)
        assert len(made) == 9
    half = own(x.bfloat16(), w.bfloat16(), scale=0.5, sums="f32")
    assert (half.y.dtype, half.xs.dtype) == (torch.float32, torch.bfloat16)
    near(half.y.bfloat16(), y)
    fixed = tilelink.op(FORWARD, scale=0.5, activation="relu", sums="f32")
    assert torch.equal(fixed(x, w).y, torch.relu(y)) and fixed is tilelink.op(
        FORWARD, scale=0.5, activation="relu", sums="f32"
    )
    near(fixed(x, w, scale=1.0, activation="identity").y, y * 2)


def library() -> None:
    """Programs of the library are programs too: the same as the library's operators."""
    rank, half = dist.get_rank(), torch.bfloat16
    x, w = every(16, 32, seed=1, dtype=half)[rank], every(24, 32, seed=2, dtype=half)[rank]
    bias, long = every(24, seed=3, dtype=half)[0], every(2, 16, 32, seed=4, dtype=half)[rank]
    gather = tilelink.op(compiler.load("ag_gemm").program("ag_gemm_in_place"), "h200")
    near(gather(x, w).flatten(0, 1), ops.ag_gemm(x, w, schedule="unfused"))
    expected = ops.ag_gemm(x, w, bias=bias, activation="silu", schedule="unfused")
    near(gather(x, w, bias, activation="silu").flatten(0, 1), expected)
    scatter = tilelink.op(compiler.load("gemm_rs").program("gemm_rs_local_last"), "h200", sums="f32")
    near(scatter(long, w), ops.gemm_rs(long.flatten(0, 1), w, schedule="unfused", f32_sums=True))
    copied = tilelink.op(compiler.load("all_gather").program("all_gather"), "all_gather:pull")
    assert torch.equal(copied(x).flatten(0, 1), ops.all_gather(x))


def out() -> None:
    """Outputs that the caller gives, by place, by name, and in a traced graph."""
    rank = dist.get_rank()
    xs, ws, _ = tensors()
    x, w = xs[rank], ws[rank]
    own = tilelink.op(FORWARD, scale=0.5)
    expected = own(x, w)
    y, taken = torch.empty(MS, N), torch.empty(MS, K)
    for given in ((y, taken), {"xs": taken, "y": y}, [y, taken]):
        y.fill_(7)
        taken.fill_(7)
        found = own(x, w, out=given)
        assert found.y is y and found.xs is taken
        assert torch.equal(y, expected.y) and torch.equal(taken, expected.xs)
    single = tilelink.op(SEND_BACK, scale=1.0)
    dx = torch.empty(MS, K)
    assert single(torch.ones(MS, N), torch.zeros(MS, K), w, out=dx) is dx

    def traced(x: Tensor, w: Tensor, y: Tensor, taken: Tensor) -> Tensor:
        return own(x, w, out=(y, taken)).y * 2 + y

    y.fill_(7)
    near(torch.compile(traced, backend="aot_eager", fullgraph=True)(x, w, y, taken), expected.y * 3)
    assert torch.equal(y, expected.y)
    for given, kind, message in (
        ((torch.empty(MS, N + 1), taken), ShapeError, r"out y of neighbour_product is \[6, 6\] f32"),
        ((y.double(), taken), ShapeError, r"out y of neighbour_product is \[6, 5\] float64"),
        ((torch.empty(N, MS).T, taken), ShapeError, r"\[6, 5\] f32, not contiguous"),
        ((y,), BindingError, "out of neighbour_product is not that of its outputs"),
        ({"y": y, "z": taken}, BindingError, "out of neighbour_product is not that of its outputs"),
        ((y, x), BindingError, "output 'xs' shares memory with input 'x'"),
    ):
        with pytest.raises(kind, match=message):
            own(x, w, out=given)
    with pytest.raises(BindingError, match="with out= has no gradients"):
        own(x.clone().requires_grad_(), w, out=(y, taken))
    with torch.no_grad():
        own(x.clone().requires_grad_(), w, out=(y, taken))


IN_PLACE = """
program stepped(M, N):
    v : in        [M, N]
    x : inout     [M, N]
    g : symmetric [M, N]
    compute step(i: M, j: N):
        x[i, j] = x[i, j] * 0.5 + v[i, j]
        tile_push_data(g[i, j] @ (rank + 1), x[i, j])
        producer_tile_notify(g[i, j] @ (rank + 1))
    compute mixed(i: M, j: N):
        consumer_tile_wait(g[i, j])
        OUTPUT[i, j] = g[i, j]
"""


def in_place() -> None:
    """Tensors that a call changes: with an output, without one, in a traced graph, and mistakes."""
    rank = dist.get_rank()
    given, state = every(MS, N, seed=1), every(MS, N, seed=2)
    v, other = given[rank], state[1 - rank] * 0.5 + given[1 - rank]
    source = IN_PLACE.replace("OUTPUT", "y").replace("    g : sym", "    y : out       [M, N]\n    g : sym")
    own = tilelink.op(compiler.parse(source).program())
    assert own.signature.schema().startswith("(Tensor v, Tensor(a0!) x, ") and own.signature.outputs == ("y",)
    x = state[rank].clone()
    y = own(v, x)
    near(y, other)
    near(x, state[rank] * 0.5 + v)
    near(own(x=x, v=v), other * 0.5 + given[1 - rank])
    near(x, (state[rank] * 0.5 + v) * 0.5 + v)
    made = torch.empty(MS, N)
    assert own(v, state[rank].clone(), out=made) is made
    near(made, other)

    alone = tilelink.op(
        compiler.parse(
            IN_PLACE.replace("OUTPUT", "z").replace("    g : sym", "    z : inout     [M, N]\n    g : sym")
        ).program()
    )
    x, z = state[rank].clone(), torch.zeros(MS, N)
    found = alone(v, x, z)
    assert found.x is x and found.z is z
    near(z, other)

    def traced(v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + 0.0
        y = own(v, x)
        return y * 2, x + 1

    twice, more = torch.compile(traced, backend="aot_eager", fullgraph=True)(v, state[rank])
    near(twice, other * 2)
    near(more, state[rank] * 0.5 + v + 1)

    def changed(v: Tensor, x: Tensor, z: Tensor) -> Tensor:
        alone(v, x, z)
        return z * 2

    x, z = state[rank].clone(), torch.zeros(MS, N)
    near(torch.compile(changed, backend="aot_eager", fullgraph=True)(v, x, z), other * 2)
    near(x, state[rank] * 0.5 + v)
    near(z, other)

    x = state[rank].clone()
    for arguments, message in (
        ((v.clone().requires_grad_(), x), "changes x in place, and has no gradients"),
        ((v, torch.zeros(N, MS).T), "x of stepped is not contiguous"),
        ((v, v), "output 'x' shares memory with input 'v'"),
    ):
        with pytest.raises(BindingError, match=message):
            own(*arguments)
    assert torch.equal(x, state[rank])
    with torch.no_grad():
        near(own(v.clone().requires_grad_(), x), other)
    with pytest.raises(BindingError, match="stepped has no output that out= could be"):
        alone(v, x, z, out=made)
    with pytest.raises(BindingError, match="stepped changes x in place, and such a call has no gradients"):
        tilelink.op(own.program, backward=lambda dy: {"dv": dy})


ANY_ROWS = """
program any_rows(M, N, K):
    m : in  [] <= M
    x : in  [M[: m], K]
    w : in  [N, K]
    y : out [M[: m], N]

    compute gemm(i: M[: m], j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)
"""


def any_rows() -> None:
    """One kernel for any number of rows: as many as there are, as an integer says, or a tensor."""
    most, rank = 12, dist.get_rank()
    own = tilelink.op(tilelink.parse(ANY_ROWS).program(), M=most)
    buffer, w = torch.randn(most, K), torch.randn(N, K)
    with counting() as made:
        for rows in (torch.randn(3 + rank, K), buffer[: 5 + rank], buffer, buffer[:0], torch.randn(7, K)):
            found = own(rows, w)
            assert found.shape == (len(rows), N)
            assert not len(rows) or near(found, rows @ w.T) is None
        near(own(buffer, w, 4 + rank), buffer[: 4 + rank] @ w.T)
        near(own(buffer, w, m=np.int64(2)), buffer[:2] @ w.T)
        found = own(buffer, w, torch.tensor(9, dtype=torch.int32))
        assert found.shape == (most, N)
        near(found[:9], buffer[:9] @ w.T)
        whole = torch.full((most, N), 7.0)
        given = own(buffer[:6], w, out=whole[:6])
        assert given.data_ptr() == whole.data_ptr() and given.shape == (6, N)
        near(whole[:6], buffer[:6] @ w.T)
        traced = torch.compile(lambda x: own(x, w) * 2, fullgraph=True, dynamic=True, backend="aot_eager")
        for n in (5, 8):
            near(traced(buffer[:n]), buffer[:n] @ w.T * 2)
    assert len(made) == 1
    with pytest.raises(ShapeError, match=r"x of any_rows is \[13, 8\], and 12 is the most"):
        own(torch.randn(13, K), w)
    with pytest.raises(BindingError, match="m of any_rows is 9"):
        own(torch.randn(3, K), w, 9)  # more than there are
    with pytest.raises(BindingError, match="m of any_rows is 13"):
        own(buffer, w, 13)
    with pytest.raises(BindingError, match="out y has no room for all that a kernel may write"):
        own(buffer[:6], w, out=torch.empty(6, N))
    with pytest.raises(BindingError, match="M = 2147483648"):
        tilelink.op(tilelink.parse(ANY_ROWS).program())(torch.ones(3, 8), torch.ones(4, 8), M=2**31)
    vast, before = tilelink.op(tilelink.parse(ANY_ROWS).program(), M=2**31 - 1), torch.ones(3, 5000)
    refused = r"any_rows with M=2147483647 takes 40,0\d\d.\d GiB, of which x 40,000.0 GiB"
    with pytest.raises(BindingError, match=refused):
        vast(before, torch.ones(4, 5000))  # nothing is allocated
    with pytest.raises(BindingError, match="any_rows is not given m"):
        tilelink.op(tilelink.parse(ANY_ROWS).program())(buffer, w)


LISTED = """
program listed(M, N, T = 4):
    m : in  [] <= M
    r : in  [T] < M
    x : in  [M[: m], N]
    y : out [M[: m], N]
    z : out [T] i32

    compute f(i: M[: m], j: N):
        y[i, j] = x[i, j] * 2.0
    compute g(t: T by 1):
        z[t] = r[t]
"""


def odd_tensors() -> None:
    """What is no dense tensor on the CPU is refused, also by a call of a kind that there was before."""
    own = tilelink.op(tilelink.parse(LISTED).program(), M=8)
    r, x = torch.zeros(4, dtype=torch.int32), torch.randn(5, 3)
    for _ in range(2):
        assert own(r, x, 5).y.shape == (5, 3)
        for arguments, kind, message in (
            ((5, x, 5), BindingError, "r of listed is a int"),
            ((r, 5, 5), BindingError, "x of listed is a int"),
            ((r, x.to_sparse(), 5), BindingError, "x of listed is of the layout sparse_coo"),
            ((r, x.to_sparse_csr(), 5), BindingError, "x of listed is of the layout sparse_csr"),
            ((r, torch.nested.nested_tensor([x, x]), 5), BindingError, "x of listed is nested"),
            ((r.to("meta"), x.to("meta"), 5), DtypeError, "on meta"),
        ):
            with pytest.raises(kind, match=message):
                own(*arguments)
        wrong: list[Any] = [(None, None), (x, None), 5, False, {"y": x, "z": None}, [x]]
        for out in wrong:
            with pytest.raises(BindingError, match="out of listed is not that of its outputs"):
                own(r, x, 5, out=out)
        made = (torch.zeros(8, 3), torch.zeros(4, dtype=torch.int32))
        with pytest.raises(BindingError, match="out z of listed is of the layout sparse_coo"):
            own(r, x, 5, out=(made[0], made[1].to_sparse()))
        with pytest.raises(DtypeError, match="z of listed lies on meta"):
            own(r, x, 5, out=(made[0], made[1].to("meta")))
        own(r, x, 5, out=made)


def groups() -> None:
    """Groups of any ranks, also by their names; a rank outside is told so."""
    rank = dist.get_rank()
    alone: list[Any] = [dist.new_group([one]) for one in range(2)]
    xs, ws, _ = tensors()
    x, w = xs[rank], ws[rank]
    own = tilelink.op(FORWARD, scale=1.0)
    near(own(x, w, group=alone[rank]).y, x @ w.T)
    near(own(x, w, group=alone[rank].group_name).y, x @ w.T)
    near(own(x, w, group=dist.group.WORLD).y, xs[1 - rank] @ w.T)
    with pytest.raises(RankError, match="not in the group"):
        own(x, w, group=alone[1 - rank])
    with pytest.raises(RankError, match="no process group 'nothing'"):
        own(x, w, group="nothing")
    others: list[Any] = [5, [0, 1]]
    for other in others:
        with pytest.raises(RankError, match=f"the group is of type {type(other).__name__}, which"):
            own(x, w, group=other)
        with pytest.raises(RankError, match=f"the group is of type {type(other).__name__}, which"):
            tilelink.ops.all_gather(x, group=other)


def tables() -> None:
    """Tables are given once, tell sizes too, and belong to what an operator is."""
    rank = dist.get_rank()
    program = MODULE.program("shuffled")
    owners = torch.tensor([[1, 0, 1], [0, 0, 1]])
    xs = every(3, 4, seed=1)
    own = tilelink.op(program, tables={"owner": owners})
    expected = torch.stack([xs[int(owner)][b] for b, owner in enumerate(owners[rank])])
    assert torch.equal(own(xs[rank]), expected)
    assert tilelink.op(program, tables={"owner": owners.clone()}) is own
    assert tilelink.op(program, tables={"owner": 1 - owners}).name != own.name
    with pytest.raises(ShapeError, match="B of shuffled is 2 in x and 3 in owner"):
        own(xs[rank][:2])
    with pytest.raises(BindingError, match="shuffled has no table 'owners'"):
        tilelink.op(program, tables={"owners": owners})
    with pytest.raises(BindingError, match="table 'owner' has no value"):
        tilelink.op(program)(xs[rank])


def mistakes() -> None:
    """Arguments that do not fit are refused with its reason on every rank, and the group goes on."""
    rank = dist.get_rank()
    xs, ws, bias = tensors()
    x, w = xs[rank], ws[rank]
    own = tilelink.op(FORWARD)
    cases: list[tuple[Callable[[], Any], type[TileLinkError], str, str]] = [
        (lambda: own(x, w[:, 1:], scale=1.0), ShapeError, "K of neighbour_product is 8 in x and 7 in w",
         "x is [6, 8], declared [Ms, K]; w is [5, 7], declared [N, K]"),
        (lambda: own(x[None], w, scale=1.0), ShapeError, "x of neighbour_product is [1, 6, 8], with 3 axes",
         "it is declared [Ms, K]"),
        (lambda: own(x, w, bias[1:], scale=1.0), ShapeError, "N of neighbour_product is 5 in w and 4 in bias", "w is"),
        (lambda: own(x, w, scale=1.0, N=4), ShapeError, "N of neighbour_product is 4 in the call and 5 in w", "w is"),
        (lambda: own(x, w), BindingError, "parameter 'scale' of neighbour_product is not known", "in the call: scale"),
        (lambda: own(x, w, sclae=1.0), BindingError, "neighbour_product takes no 'sclae'", "did you mean scale?"),
        (lambda: own(x, scale=1.0), BindingError, "neighbour_product is not given w",
         "its inputs are x, w, bias (may be left out)"),
        (lambda: own(x, w, bias, w), BindingError, "neighbour_product is given 4 tensors", "its inputs are"),
        (lambda: own(x, w, x=x), BindingError, "x of neighbour_product is given twice", "by its name"),
        (lambda: own(x, [1.0], scale=1.0), BindingError,  # type: ignore[arg-type]
         "w of neighbour_product is a list", "its inputs are tensors"),
        (lambda: own(x.double(), w, scale=1.0), DtypeError, "x of neighbour_product is float64",
         "it may be f16, bf16, f32"),
        (lambda: own(x, w.half(), scale=1.0), DtypeError, "w of neighbour_product is f16",
         "x says f32; inputs that declare no type have one type"),
        (lambda: own(x, w.to("meta"), scale=1.0), DtypeError, "w of neighbour_product lies on meta", "one device"),
        (lambda: own(x, w, scale=1.0, activation="rel"), TileLinkError, "activation is a function, not rel", "relu"),
        (lambda: own(x, w, scale=1.0, schedule="fin"), UnknownNameError, "no schedule 'fin'", "did you mean fine?"),
        (lambda: own(x, w, scale="much"), BindingError, "scale of neighbour_product is a str", "a number"),
        (lambda: own(x, w, scale=[1.0]), BindingError, "scale of neighbour_product is a list", "a number"),
        (lambda: own(x, w, scale=x), BindingError, "scale of neighbour_product is a Tensor", "a number"),
        (lambda: own(x, w, scale=1.0, sums=3), BindingError, "sums of neighbour_product is a int", "element type"),
        (lambda: own(x, w, scale=1.0, N=-5), BindingError, "N = -5", "a dimension is a positive integer"),
        (lambda: own(x[:0], w, scale=1.0), BindingError, "Ms = 0", "a positive integer"),
        (lambda: own.kernel(x, w, scale=1.0), BindingError, "has no kernel for CPU tensors", "tilelink.compile"),
        (lambda: own.bench(x, w, scale=1.0), BindingError, "has no kernel for CPU tensors", "tilelink.compile"),
    ]  # fmt: skip
    for call, kind, message, hint in cases:
        with pytest.raises(kind, match=re.escape(message)) as caught:
            call()
        assert hint in str(caught.value.hint), caught.value
    counted = MODULE.program("counted")
    with pytest.raises(DtypeError, match="the element type of y of counted is not known") as caught:
        tilelink.op(counted, value=3)(torch.arange(4).int())
    assert "dtype='bf16'" in str(caught.value.hint)
    assert tilelink.op(counted, value=3, dtype="f32")(torch.arange(4).int()).tolist() == [3.0, 4.0, 5.0, 6.0]
    with pytest.raises(DtypeError, match="x of counted is i64"):
        tilelink.op(counted, value=3, dtype="f32")(torch.arange(4))
    with pytest.raises(ShapeError, match=f"rank {rank} calls neighbour_product with x .{4 + rank}, 8. f32 on cpu, and"):
        own(x[: 4 + rank], w, scale=1.0)
    with pytest.raises(ShapeError, match=f"rank {rank} calls neighbour_product with scale={rank}.0, and"):
        own(x, w, scale=float(rank))
    wrong = w[:, 1:] if rank else w
    with pytest.raises(ShapeError if rank else RankError, match="K of neighbour_product is 8 in x and 7 in w"):
        own(x, wrong, scale=1.0)
    near(own(x, w, scale=1.0).y, xs[1 - rank] @ w.T)


def gradients() -> None:
    """Gradients by a program and a function, against autograd over all ranks' tensors at once."""
    rank = dist.get_rank()
    own = tilelink.op(FORWARD, "fine", backward=(SEND_BACK, weight_gradient))
    xs, ws, _ = tensors()
    seeds, others = every(MS, N, seed=7), every(MS, K, seed=8)
    whole = [t.clone().requires_grad_() for t in (*xs, *ws)]
    loss = torch.zeros(())
    for r in range(2):
        loss = loss + ((whole[1 - r] @ whole[2 + r].T * 0.5) * seeds[r]).sum() + (whole[1 - r] * others[r]).sum()
    loss.backward()

    def ours(x: Tensor, w: Tensor) -> Tensor:
        y, taken = own(x, w, scale=0.5)
        return (y * seeds[rank]).sum() + (taken * others[rank]).sum()

    for function in (ours, torch.compile(ours, backend="aot_eager", fullgraph=True)):
        x, w = xs[rank].clone().requires_grad_(), ws[rank].clone().requires_grad_()
        function(x, w).backward()
        near(x.grad, whole[rank].grad, "dx")  # type: ignore[arg-type]
        near(w.grad, whole[2 + rank].grad, "dw")  # type: ignore[arg-type]
    reference, run = compiler.reference, list[str]()

    def counted(program: Any, *arguments: Any, **options: Any) -> Any:
        run.append(program.name)
        return reference(program, *arguments, **options)

    for needs, programs in (((True, False), [FORWARD.name, SEND_BACK.name]), ((False, True), [FORWARD.name])):
        x, w = (t.clone().requires_grad_(need) for t, need in zip((xs[rank], ws[rank]), needs, strict=True))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "reference", counted)
            ours(x, w).backward()
        assert (x.grad is not None, w.grad is not None) == needs
        assert run == programs, "no program runs whose gradient nobody needs"
        run.clear()
    detached = own(xs[rank].clone().requires_grad_(), ws[rank], scale=0.5).xs.sum()  # y has no gradient
    detached.backward()


def functions() -> None:
    """One function for all gradients: what it may take, and what is said of what it gives."""
    rank = dist.get_rank()
    xs, ws, _ = tensors()
    send_back = tilelink.op(SEND_BACK)
    seen: list[Any] = []

    def both(dy: Tensor, dxs: Tensor, w: Tensor, xs: Tensor, scale: float, Ms: int, activation: Any, group: str,
             needs: tuple[str, ...], extra: int = 3) -> dict[str, Tensor]:  # fmt: skip
        seen.append((Ms, activation, group, needs, extra))
        return {"dx": send_back(dy, dxs, w, scale=scale, group=group), "dw": dy.T @ xs * scale}

    own = tilelink.op(FORWARD, backward=both)
    x, w = xs[rank].clone().requires_grad_(), ws[rank].clone().requires_grad_()
    own(x, w, scale=2.0, activation="identity").y.sum().backward()
    assert dist.group.WORLD
    assert seen == [(MS, "identity", dist.group.WORLD.group_name, ("x", "w"), 3)]
    near(w.grad, torch.ones(N, MS) @ xs[1 - rank] * 2)  # type: ignore[arg-type]
    near(x.grad, torch.ones(MS, N) @ ws[1 - rank] * 2)  # type: ignore[arg-type]

    def fails(backward: Any, message: str) -> None:
        one = tilelink.op(FORWARD, backward=backward, scale=1.0)
        with pytest.raises(BindingError, match=re.escape(message)):
            one(x, w).y.sum().backward()

    fails(lambda dy: dy, "the backward function of neighbour_product returned a Tensor")
    fails(lambda dy: {"dz": dy}, "the backward of neighbour_product gives 'dz'")
    fails(lambda dy: {"dx": None}, "the backward of neighbour_product gives no dw")
    fails(lambda dy: {"dx": None, "dw": dy}, "dw of neighbour_product is [6, 5], and w is [5, 8]")
    fails(None, "neighbour_product has no gradient")
    x.grad = None
    tilelink.op(FORWARD, backward=lambda dy: {"dx": None, "dw": None}, scale=1.0)(x, w).y.sum().backward()
    assert x.grad is None or not x.grad.any()


def traced() -> None:
    """One graph for any sizes; the traced call takes choices, what is left out, and groups."""
    rank = dist.get_rank()
    xs, ws, bias = tensors()
    x, w, other = xs[rank], ws[rank], xs[1 - rank]
    own = tilelink.op(FORWARD, "fine")
    assert dist.group.WORLD

    def layer(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return own(x, w, bias, scale=0.5, activation="relu").y + own(w=w, x=x, scale=0.5, group=dist.group.WORLD).y

    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for rows in (MS, 4, 3, 5):
        y = other[:rows] @ w.T * 0.5
        near(compiled(x[:rows], w, bias), torch.relu(y + bias) + y)
    assert len(graphs) == 2, "the second graph takes any number of rows"
    with torch._subclasses.FakeTensorMode():
        y, taken = own(torch.empty(7, K), torch.empty(3, K), scale=1.0)
        assert (list(y.shape), list(taken.shape)) == ([7, 3], [7, K])
        with pytest.raises(ShapeError, match="K of neighbour_product"):
            own(torch.empty(7, K), torch.empty(3, K + 1), scale=1.0)


def kernels() -> None:
    """A first call on GPUs compiles once the ranks have compared their calls, and not in a CUDA graph."""
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    xs, ws, bias = tensors()
    product = tilelink.op(FORWARD, "fine", scale=0.5)
    made: list[dict[str, Any]] = []

    def compiled(program: Any, schedule: Any, **options: Any) -> str:
        made.append({"program": program, "schedule": schedule, **options})
        return "the kernel"

    def first(*given: Tensor, **named: Any) -> Any:
        call = product._as_call(product._bound(given, named))
        return product._made(call, torch.device("cuda"), group, product.schedule)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_module.compiler, "compile", compiled)
        patch.setattr(own_module.Op, "_check_devices", lambda *_: None)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        assert first(xs[rank].bfloat16(), ws[rank].bfloat16(), bias.bfloat16(), sums="f32") == "the kernel"
        (found,) = made
        assert found.pop("schedule").name == "fine"
        assert [one.name for one in found["program"].tensors if one.space == "in"] == ["x", "w", "bias"]
        assert found.pop("program").tensor("y").dtype == "f32"
        dims = {"Ms": MS, "N": N, "K": K, "scale": 0.5}
        where = {"ranks": 2, "nodes": 1, "device": "cuda", "group": group}
        assert found == {**where, "dims": dims, "dtype": "bf16", "tables": {}, "target": None}
        with pytest.raises(ShapeError, match=f"rank {rank} calls neighbour_product with x"):
            first(xs[rank][: 3 + rank], ws[rank])
        with pytest.raises(ShapeError if rank else RankError, match="K of neighbour_product is 8 in x and 7 in w"):
            first(xs[rank], ws[rank][:, rank:])
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RankError, match="compiled at its first call, which no CUDA graph holds"):
            first(xs[rank], ws[rank])
    assert len(made) == 1


def checks() -> None:
    """torch's own tests of custom operators."""
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    own = tilelink.op(FORWARD, "fine", backward=(SEND_BACK, weight_gradient))
    x, w, bias = torch.randn(MS, K), torch.randn(N, K), torch.randn(N)
    rest = (None, None, None, 0.5, None, None, group, own.schedule)
    find = getattr(torch.ops, own.name.partition("::")[0])
    name = own.name.partition("::")[2]
    graded = (x.clone().requires_grad_(), w.clone().requires_grad_())
    for operands in ((x, w, None), (x, w, bias), (*graded, None)):
        torch.library.opcheck(getattr(find, name).default, (*operands, *rest))
    outputs = torch.empty(MS, N), torch.empty(MS, K)
    torch.library.opcheck(getattr(find, f"{name}_out").default, (x, w, None, *rest, *outputs))


def attended() -> None:
    """Attention to the keys of all ranks, with gradients, by the program and unfused, is that of the whole sequence."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for causal, dtype, way, groups, gradients in (
        (False, torch.float32, None, 3, None), (True, torch.bfloat16, None, 1, None),
        (True, torch.float32, "unfused", 2, "default"), (False, torch.bfloat16, "unfused", 1, "default"),
    ):  # fmt: skip
        rows = (12 if causal else 13) * ranks  # with a mask two blocks in each chunk
        shapes = [(2, heads, rows, 8) for heads in (2 * groups, 2, 2, 2 * groups)]
        whole = [every(*shape, seed=7 + n, dtype=dtype)[0] for n, shape in enumerate(shapes)]
        q, k, v = (one.clone().requires_grad_() for one in whole[:3])
        wanted = torch.nn.functional.scaled_dot_product_attention(
            q.float(), k.float(), v.float(), is_causal=causal, enable_gqa=True
        )
        wanted.backward(whole[3].float())

        def own(x: Tensor, causal: bool = causal) -> Tensor:
            return ops.zigzag(x, ranks, rank) if causal else x.chunk(ranks, 2)[rank]

        mine = [own(one.detach()).clone().requires_grad_() for one in (q, k, v)]
        call = partial(ops.attention, is_causal=causal, schedule=way, gradients=gradients)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(context_parallel, "BLOCK", 3)
            found = call(*mine)
        near(found, own(wanted.detach()), f"{causal} {way}")
        found.backward(own(whole[3]))
        if gradients and not causal:
            again = [one.detach().requires_grad_() for one in mine]
            torch.compile(call, fullgraph=True, backend="aot_eager")(*again).backward(own(whole[3]))
            for one, other in zip(mine, again, strict=True):
                assert torch.equal(cast(Tensor, one.grad), cast(Tensor, other.grad)), "sums in another order"
        for name, one, of_all in zip("qkv", mine, (q, k, v), strict=True):
            near(cast(Tensor, one.grad), own(cast(Tensor, of_all.grad)), f"d{name} {causal} {way}")
        if causal:
            gathered = [torch.empty_like(found) for _ in range(ranks)]
            dist.all_gather(gathered, found.detach().contiguous())
            near(ops.from_zigzag(gathered), wanted.detach(), "the whole sequence")


def graded_at_once() -> None:
    """A rank that has the whole sequence has no parts of it."""
    calls: list[bool] = []

    def gradients(*given: Any, whole: Any = torch_attention.gradients) -> Any:
        calls.append(given[-1])
        return whole(*given)

    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_attention, "gradients", gradients)
        for causal in (False, True):
            ops.attention(q, q, q, is_causal=causal).sum().backward()
    assert calls == [False, True]


def graded_by_choice() -> None:
    """Gradients of which nobody says how are by the kernel where that is chosen, and unfused wherever it cannot be."""
    unfused: list[bool] = []
    asked: list[tuple[Any, ...]] = []

    def gradients(*given: Any, whole: Any = torch_attention.gradients, **named: Any) -> Any:
        unfused.append(True)
        return whole(*given, **named)

    def choose(*call: Any) -> str:
        asked.append(call)
        return "default"

    whole = torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(3)).bfloat16()
    edges, gpu = torch.tensor([0, 3], dtype=torch.int32), SimpleNamespace(gpu="NVIDIA H200", one_node=True)
    cases: tuple[tuple[dict[str, Any], bool], ...] = (
        ({}, True), ({"is_causal": True}, True), ({"gradients": "unfused"}, False), ({"schedule": "unfused"}, False),
        ({"schedule": "unfused", "gradients": "default"}, True), ({"is_causal": True, "cu_seqlens": edges}, False),
    )  # fmt: skip
    for ways, kernel in cases:
        q, k, v = (whole.clone().requires_grad_() for _ in range(3))
        found = ops.attention(q, k, v, **{"schedule": "default", **ways})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_attention, "gradients", gradients)
            patch.setattr(context_parallel, "GRADED_DEPTH", 4)
            patch.setattr(context_parallel, "_chosen", lambda _: "gpu_roles")
            patch.setattr(context_parallel, "consensus", lambda _: gpu)
            patch.setattr(context_parallel, "chosen", choose)
            found.sum().backward()
        assert bool(unfused) is not kernel, ways
        unfused.clear()
    every_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every_rank, asked)
    assert all(one == asked for one in every_rank)
    assert asked == [((2, 1, 8, 4), 2, "bf16", "NVIDIA H200"), ((2, 1, 2, 1, 4, 4), 2, "bf16", "NVIDIA H200")]
    q = torch.ones(1, 2, 8, 4, requires_grad=True)
    ops.attention(q, q, q).sum().backward()  # on CPUs, where nothing is asked: no group has a GPU
    assert len(asked) == 2


def attended_by_other_methods() -> None:
    """By heads and in a ring the results and gradients are those of the whole sequence, whatever the heads are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for method, causal, dtype, heads, of_keys in (
        ("ulysses", False, torch.float32, 4, 2), ("ulysses", True, torch.bfloat16, 6, 2),
        ("ulysses", True, torch.float32, 5, 5), ("ulysses", True, torch.float32, 9, 3),
        ("ulysses", False, torch.float32, 3, 1), ("ulysses", True, torch.float32, 1, 1),
        ("ring", False, torch.float32, 4, 2), ("ring", True, torch.bfloat16, 6, 2), ("ring", True, torch.float32, 3, 1),
    ):  # fmt: skip
        note = f"{method} {causal} {dtype} {heads} {of_keys}"
        shapes = [(2, heads, 12 * ranks, 8), *[(2, of_keys, 12 * ranks, 8)] * 2, (2, heads, 12 * ranks, 8)]
        whole = [every(*shape, seed=n, dtype=dtype)[0] for n, shape in enumerate(shapes)]
        of_all = [one.float().clone().requires_grad_() for one in whole[:3]]
        wanted = torch.nn.functional.scaled_dot_product_attention(
            of_all[0], of_all[1], of_all[2], is_causal=causal, enable_gqa=True, scale=0.3
        )
        wanted.backward(whole[3].float())

        def own(x: Tensor, causal: bool = causal) -> Tensor:
            return ops.zigzag(x, ranks, rank) if causal else x.chunk(ranks, 2)[rank]

        mine = [own(one).clone().requires_grad_() for one in whole[:3]]
        found = ops.attention(*mine, is_causal=causal, scale=0.3, method=method)
        near(found, own(wanted.detach()), note)
        found.backward(own(whole[3]))
        for name, one, other in zip("qkv", mine, of_all, strict=True):
            near(cast(Tensor, one.grad), own(cast(Tensor, other.grad)), f"d{name} {note}")
        if dtype == torch.bfloat16:
            traced = torch.compile(
                partial(ops.attention, is_causal=causal, scale=0.3, method=method), fullgraph=True, backend="aot_eager"
            )
            again = [one.detach().requires_grad_() for one in mine]
            traced(*again).backward(own(whole[3]))
            for one, other in zip(again, mine, strict=True):
                near(cast(Tensor, one.grad), cast(Tensor, other.grad), f"compiled {note}")
    q = torch.randn(1, 2, 10, 16)
    for method in ("ulysses", "ring"):
        with pytest.raises(BindingError, match=f"{method} has a schedule"):
            ops.attention(q, q, q, method=method, schedule="gpu_roles")
        with pytest.raises(BindingError, match=f"{method} has a schedule"):
            ops.attention(q, q, q, method=method, gradients="default")
        with pytest.raises(ShapeError, match="calls attention with"):
            ops.attention(q[:, :, : 8 + rank], q[:, :, : 8 + rank], q[:, :, : 8 + rank], method=method)
    with pytest.raises(UnknownNameError, match="no method 'rings'"):
        ops.attention(q, q, q, method="rings")


def attended_in_documents(compiled: tuple[torch.dtype, ...] = (torch.bfloat16,)) -> None:
    """Rows see their own documents alone, of which some are empty and the last one has no end of its own.

    compiled: the types of those ways that torch traces too, which takes it a second on each rank.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for causal, dtype, ways in (
        (True, torch.bfloat16, {}), (True, torch.float32, {"schedule": "unfused"}), (False, torch.float32, {}),
        (True, torch.float32, {"method": "ulysses"}), (False, torch.bfloat16, {"method": "ulysses"}),
    ):  # fmt: skip
        rows = 14 * ranks
        edges = torch.tensor([0, 5, 5, 7, rows // 2 + 1, rows - 3], dtype=torch.int32)
        of_row = torch.searchsorted(edges[1:], torch.arange(rows), right=True)
        seen = of_row[:, None] == of_row
        seen = seen & torch.ones_like(seen).tril() if causal else seen
        whole = [every(2, heads, rows, 8, seed=n, dtype=dtype)[0] for n, heads in enumerate((4, 2, 2, 4))]
        of_all = [one.float().clone().requires_grad_() for one in whole[:3]]
        wanted = torch.nn.functional.scaled_dot_product_attention(
            of_all[0], of_all[1], of_all[2], seen, enable_gqa=True, scale=0.3
        )
        wanted.backward(whole[3].float())

        def own(x: Tensor, causal: bool = causal) -> Tensor:
            return ops.zigzag(x, ranks, rank) if causal else x.chunk(ranks, 2)[rank]

        mine = [own(one).clone().requires_grad_() for one in whole[:3]]
        found = ops.attention(*mine, is_causal=causal, scale=0.3, cu_seqlens=edges, **ways)
        near(found, own(wanted.detach()), f"{causal} {dtype} {ways}")
        found.backward(own(whole[3]))
        for name, one, other in zip("qkv", mine, of_all, strict=True):
            near(cast(Tensor, one.grad), own(cast(Tensor, other.grad)), f"d{name} {causal} {dtype} {ways}")
        if dtype not in compiled:
            continue
        traced = torch.compile(
            partial(ops.attention, is_causal=causal, scale=0.3, **ways), fullgraph=True, backend="aot_eager"
        )
        again = [one.detach().requires_grad_() for one in mine]
        traced(*again, cu_seqlens=edges).backward(own(whole[3]))
        for one, other in zip(again, mine, strict=True):
            near(cast(Tensor, one.grad), cast(Tensor, other.grad), f"compiled {causal} {dtype} {ways}")
    q, some = torch.randn(1, 2, 6, 16), torch.zeros(2 + rank, dtype=torch.int32)
    with pytest.raises(ShapeError, match="calls attention with"):
        ops.attention(q, q, q, is_causal=True, cu_seqlens=some)
    for documents, error, text in (
        (some[None], ShapeError, r"cu_seqlens is \[1, "), (some[:0], ShapeError, r"cu_seqlens is \[0\]"),
        (some.long(), DtypeError, "cu_seqlens is torch.int64"),
        (cast(Tensor, [0, 4]), DtypeError, "cu_seqlens of attention is a list"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            ops.attention(q, q, q, cu_seqlens=documents)
    for told, text in (
        ([0, 5, 3, 6], "cu_seqlens falls from 5 to 3, at 2"), ([1, 6], "cu_seqlens is from 1 to 6"),
        ([0, 6 * ranks + 1], f"from 0 to {6 * ranks + 1}, of a sequence of {6 * ranks} rows"),
        ([-1, 6], "from -1 to 6"),
    ):  # fmt: skip
        ways: Any
        for ways in ({}, {"schedule": "unfused"}, {"method": "ulysses"}):
            with pytest.raises(BindingError, match=text):
                ops.attention(q, q, q, is_causal=True, cu_seqlens=torch.tensor(told, dtype=torch.int32), **ways)
    with pytest.raises(ShapeError, match=f"calls attention with ending at 0 {2 + rank}, and rank"):
        ops.attention(q, q, q, cu_seqlens=torch.tensor([0, 2 + rank], dtype=torch.int32))
    with pytest.raises(BindingError, match="a ring has no documents"):
        ops.attention(q, q, q, method="ring", cu_seqlens=some)
    with pytest.raises(BindingError, match="documents have gradients by a schedule"):
        ops.attention(q, q, q, is_causal=True, gradients="default", cu_seqlens=some)
    with pytest.raises(UnknownNameError, match="no schedule 'nonsense' for ag_attention_gradients"):
        ops.attention(q, q, q, gradients="nonsense")  # not by backward, which comes later and elsewhere
    with pytest.raises(BindingError, match="gpu_roles has documents without a mask"):
        ops.attention(q, q, q, schedule="gpu_roles", cu_seqlens=some[:2])


LAID: dict[str, Callable[[Tensor], Tensor]] = {
    "heads in rows": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "depth first": lambda x: x.mT.contiguous().mT,
    "every other row": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "every other element": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "heads alike": lambda x: x[:, :1].expand_as(x),
}
"""How operands may lie in memory, as models have them or not; the last one has other values."""


def attended_in_documents_as_they_lie() -> None:
    """Operands, gradients of results and where documents begin may be any views."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = 14 * ranks
    told = torch.tensor([0, 5, 5, 7, rows // 2 + 1, rows - 3], dtype=torch.int32)
    edges = told.repeat_interleave(2)[::2]
    for causal, dtype, ways in (
        (True, torch.bfloat16, {}), (True, torch.float32, {"schedule": "unfused"}), (False, torch.float32, {}),
        (True, torch.float32, {"method": "ulysses"}),
    ):  # fmt: skip
        whole = [every(2, heads, rows, 8, seed=n, dtype=dtype)[0] for n, heads in enumerate((4, 2, 2, 4))]
        dense = [ops.zigzag(one, ranks, rank) if causal else one.chunk(ranks, 2)[rank] for one in whole]
        for name, laid in LAID.items():
            found = list[list[Tensor]]()
            views = [laid(one) for one in dense]
            assert not any(one.is_contiguous() for one in views), name
            for given in (views, [one.contiguous() for one in views]):
                q, k, v = (one.detach().requires_grad_() for one in given[:3])
                y = ops.attention(q, k, v, is_causal=causal, scale=0.3, cu_seqlens=edges, **ways)
                y.backward(given[3])
                found.append([y.detach(), *(cast(Tensor, one.grad) for one in (q, k, v))])
            for what, one, other in zip(("y", "dq", "dk", "dv"), *found, strict=True):
                near(one, other, f"{what}, {name}, {causal} {dtype} {ways}")


def attended_in_documents_compiled() -> None:
    attended_in_documents((torch.bfloat16, torch.float32))


def attended_as_on_gpus() -> None:
    """What tests do on GPUs, with small sizes."""
    ways = {}, {"schedule": "unfused"}, {"method": "ulysses"}, {"method": "ring"}, {"gradients": "default"}
    for causal, documents in ((False, False), (True, False), (True, True), (False, True)):
        own = ways[: 3 if documents else 5]
        checks = Checks()
        case = ops_attention.Case(causal=causal, documents=documents, depth=16, rows=8, ways=own)
        with ops_attention.exchanging():
            ops_attention.attended(case, checks, "cpu")
        assert not checks.failures, checks.failures


def attended_in_f64() -> None:
    """Attention of f64 is as exact as torch's, with its gradients; of nothing it is nothing."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = [every(1, 2, 12 * ranks, 8, seed=n)[0].double().requires_grad_() for n in range(3)]
    wanted = torch.nn.functional.scaled_dot_product_attention(whole[0], whole[1], whole[2], is_causal=True)
    wanted.square().sum().backward()
    mine = [ops.zigzag(one.detach(), ranks, rank).requires_grad_() for one in whole]
    found = ops.attention(*mine, is_causal=True)
    found.square().sum().backward()
    pairs = [(found, wanted), *((one.grad, other.grad) for one, other in zip(mine, whole, strict=True))]
    for one, other in pairs:
        assert one is not None and other is not None
        torch.testing.assert_close(one, ops.zigzag(other, ranks, rank), atol=1e-12, rtol=1e-12)
    q, k = torch.ones(0, 4, 6, 8, requires_grad=True), torch.ones(0, 2, 6, 8, requires_grad=True)
    nothing = ops.attention(q, k, k)
    assert nothing.shape == q.shape
    nothing.sum().backward()
    assert q.grad is not None and k.grad is not None and q.grad.shape == q.shape and k.grad.shape == k.shape


def attended_oddly() -> None:
    """Scales that turn a mask round, operands that lie as models have them, and calls that ranks make unlike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.bfloat16, torch.float32):
        whole = [one[0].transpose(1, 2) for one in (every(1, 8 * ranks, 2, 16, seed=n, dtype=dtype) for n in range(3))]
        mine = [ops.zigzag(one, ranks, rank).transpose(1, 2).contiguous().transpose(1, 2) for one in whole]
        for scale in (0.3, -1.0):  # of which torch's own, on CPUs, masks with the wrong sign
            q, k, v = (one.float() for one in whole)
            wanted = torch.nn.functional.scaled_dot_product_attention(
                q if scale > 0 else -q, k, v, is_causal=True, scale=abs(scale)
            )
            near(ops.attention(*mine, is_causal=True, scale=scale), ops.zigzag(wanted, ranks, rank), f"{dtype} {scale}")
        graded = [one.detach().requires_grad_() for one in mine]
        ops.attention(*graded, is_causal=True).sum().backward()
        again = [one.detach().requires_grad_() for one in mine]
        traced = torch.compile(partial(ops.attention, is_causal=True), fullgraph=True, backend="aot_eager")
        traced(*again).sum().backward()
        for one, other in zip(again, graded, strict=True):
            near(cast(Tensor, one.grad), cast(Tensor, other.grad), "permuted")
        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        flat = [one[0].unsqueeze(1) if n == 0 else one[0] for n, one in enumerate(graded)]
        torch.library.opcheck(torch.ops.tilelink.attention.default, (*flat, None, 0.25, group, "", ""))
    q = torch.randn(1, 2, 10, 16)  # first calls with such sizes, which ranks compare
    unlike: dict[str, Any]
    for unlike in ({"scale": 1.0 + rank}, {"is_causal": rank > 0}, {"schedule": "unfused" if rank else None}):
        with pytest.raises(ShapeError, match="calls attention with"):
            ops.attention(q, q, q, **unlike)
    more = torch.randn(1, 2, 14 + 2 * rank, 16)
    with pytest.raises(ShapeError, match="attention"):
        ops.attention(more, more, more)
    with pytest.raises(BindingError, match="schedule gpu_roles has a scale of -1"):
        ops.attention(q, q, q, is_causal=True, scale=-1.0, schedule="gpu_roles")


def attended_compiled() -> None:
    q, k, v = (every(1, 2, 8, 16, seed=n)[0].requires_grad_() for n in range(3))
    wanted = ops.attention(q, k, v, is_causal=True)
    traced = torch.compile(partial(ops.attention, is_causal=True), fullgraph=True, backend="aot_eager")
    found = traced(q, k, v)
    near(found, wanted.detach(), "traced")
    own = tilelink.schedule(compiler.load("ag_attention").program("zigzag_attention")).tile("attn", i=2)
    near(ops.attention(q, k, v, is_causal=True, schedule=own), wanted.detach(), "by a schedule")
    with pytest.raises(BindingError, match="is for zigzag_attention"):
        ops.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), schedule=own)
    (dq,) = torch.autograd.grad(wanted.sum(), q)
    (traced_dq,) = torch.autograd.grad(found.sum(), q)
    near(traced_dq, dq, "traced gradient")


class Zeros(TorchDispatchMode):
    """Notes the sizes of zeros that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.sizes = 0, list[list[int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.called += 1
        if "zeros" in str(func):
            self.sizes.append([*made.shape])
        return made


def attended_without_zeros() -> None:
    """Backward makes no zeros for what it keeps of forward, on which nothing depends."""
    for method in ("all_gather", "ulysses", "ring"):
        for traced in (False, True):
            q = torch.randn(1, 2, 6, 8).requires_grad_()
            with Zeros() if traced else nullcontext():
                y = ops.attention(q, q, q, is_causal=True, method=method)
            with Zeros() as zeros:
                y.sum().backward()
            kept = [one for one in zeros.sizes if one[-1] != 8 or one[-2] == 6 * dist.get_world_size()]
            assert zeros.called and not kept, (method, traced, kept)


def attended_mistakes() -> None:
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)
    for operands, error, text in (
        ((q[0], k, k), ShapeError, r"q is \[4, 6, 8\]"),
        ((q, k, k[:, :, :4]), ShapeError, r"v \[1, 2, 4, 8\], next to q"),
        ((q, k[:, :1].expand(1, 3, 6, 8), k[:, :1].expand(1, 3, 6, 8)), ShapeError, "4 heads share 3 heads of keys"),
        ((q[:, :, :5], k[:, :, :5], k[:, :, :5]), ShapeError, "5 rows are no two chunks"),
        ((q, k.half(), k), DtypeError, "k is torch.float16"),
        ((q, k[:, :0], k[:, :0]), ShapeError, r"k is \[1, 0, 6, 8\](?s:.*)one head of keys or more"),
        ((q[..., :0], k[..., :0], k[..., :0]), ShapeError, r"k is \[1, 2, 6, 0\]"),
        ((q.int(), k.int(), k.int()), DtypeError, "q of attention is torch.int32"),
        ((cast(Any, [q]), k, k), DtypeError, "q of attention is a list"),
        ((q, k.to_sparse(), k), DtypeError, r"k of attention is torch\.sparse_coo"),
        ((torch.nested.nested_tensor([q[0]]), k, k), DtypeError, "q of attention is a nested tensor"),
    ):
        with pytest.raises(error, match=text):
            ops.attention(*operands, is_causal=True)
    with pytest.raises(UnknownNameError, match="nothing"):
        ops.attention(q, k, k, schedule="nothing")
    with pytest.raises(ShapeError, match="6 rows are no 4 chunks"):
        ops.zigzag(q, 2, 0)
    for ranks, own in ((3, 3), (3, -1), (0, 0)):
        with pytest.raises(RankError, match=f"there is no rank {own} of {ranks}"):
            ops.zigzag(q, ranks, own)
    for rows, text in (((3, 3), "3, 3"), ((4, 2), "4, 2"), ((), "no")):
        with pytest.raises(ShapeError, match=f"parts have {text} rows"):
            ops.from_zigzag([q[:, :, :one] for one in rows])


def attended_alone() -> None:
    """Ranks are told what one of them cannot call, and where one computes gradients while others go on."""
    own, text = dist.get_rank() == 0, "rank 0 cannot make the call of attention"
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    for method in ("all_gather", "ulysses", "ring"):
        with pytest.raises(ShapeError if own else RankError, match="5 rows are no two chunks" if own else text):
            ops.attention(q, k, k, method=method, is_causal=own)
        graded = q.clone().requires_grad_()
        found = ops.attention(graded, k, k, method=method).sum()
        with pytest.raises(ShapeError, match=r"rank \d calls attention with .*gradients"):
            found.backward(retain_graph=True) if own else ops.attention(q, k, k, method=method)
        found.backward()  # and nothing hangs


class Cached:
    """Sequences whose keys lie in the caches of both ranks: 9 on one and none on the other, none at all, and so on."""

    def __init__(self, dtype: torch.dtype, depth: int = 16, queries: int | None = None) -> None:
        rank, heads, group, page = dist.get_rank(), 2, 3, 4
        self.lengths = torch.tensor([[9, 0, 4, 1], [0, 0, 11, 12]], dtype=torch.int32)
        self.counts = self.lengths
        shape = (4, heads * group, depth) if queries is None else (4, queries, heads * group, depth)
        if queries:  # each query sees one key more of the last rank, and the first one none of the first sequence
            later, (first, last) = torch.arange(queries, dtype=torch.int32), self.lengths[:, :, None]
            self.counts = torch.stack([first * (later > 0), (last + later).clamp(max=12)]).int()
        self.q = every(*shape, seed=1, dtype=dtype)[0]
        self.caches = [every(14, page, heads, depth, seed=n, dtype=dtype) for n in (2, 3)]
        self.pages = [torch.randperm(14)[:12].reshape(4, 3).int() for _ in range(2)]
        dist.broadcast_object_list(self.pages, src=0)
        keys, values = (one[rank] for one in self.caches)
        self.own = self.q, keys, values, self.pages[rank], self.counts[rank].contiguous()

    def forget(self) -> None:
        """Let caches hold no numbers where no sequence has a key, and pages be named that there are not."""
        _, keys, values, pages, lengths = self.own
        held = torch.zeros(keys.shape[:2], dtype=torch.bool)
        for mine, length in zip(pages, lengths, strict=True):
            place = torch.arange(int(length))
            held[mine[place // 4].long(), place % 4] = True
            mine[-(-int(length) // 4) :] = -1
        keys[~held] = values[~held] = float("nan")

    def wanted(self, scale: float) -> tuple[Tensor, Tensor]:
        """The attention of each query to the keys of both ranks, one by one, in f64."""
        q = self.q.double().unflatten(-2, (2, 3))
        o, lse = torch.zeros_like(q), torch.full(q.shape[:-1], float("-inf"), dtype=torch.float64)
        for at in np.ndindex(*q.shape[:-3]):
            counts = [int(one[at]) for one in self.counts]
            keys, values = (
                torch.cat([
                    cache[pages[at[0]].long()].flatten(0, 1)[:count].double()
                    for cache, pages, count in zip(one, self.pages, counts, strict=True)
                ])
                for one in self.caches
            )  # fmt: skip
            if len(keys):
                scores = torch.einsum("hgd,khd->hgk", q[at], keys) * scale
                o[at], lse[at] = torch.einsum("hgk,khd->hgd", scores.softmax(-1), values), scores.logsumexp(-1)
        return o.flatten(-3, -2), lse.flatten(-2, -1)


def decoded() -> None:
    """A decode step over caches of both ranks is attention to all keys, by the program and unfused; of none it is 0."""
    for dtype, way, queries in (
        (torch.bfloat16, None, None), (torch.bfloat16, "unfused", None), (torch.float32, None, None),
        (torch.bfloat16, None, 3), (torch.float64, None, 2), (torch.float32, None, 1),
    ):  # fmt: skip
        case = Cached(dtype, queries=queries)
        o, lse = ops.decode_attention(*case.own, scale=0.3, return_lse=True, schedule=way)
        wanted, sums = case.wanted(0.3)
        assert o.dtype == dtype and o.shape == wanted.shape and lse.shape == sums.shape
        near(o.float() if dtype == torch.float64 else o, wanted, f"{dtype} {way} {queries}")
        torch.testing.assert_close(lse.double(), sums, atol=1e-2 if dtype == torch.bfloat16 else 1e-5, rtol=1e-5)
        if queries is None:
            assert (o[1] == 0).all() and (lse[1] == float("-inf")).all()
    for dtype, way in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "unfused")):
        one = Cached(dtype)
        wanted = one.wanted(0.25)[0]
        one.forget()
        near(ops.decode_attention(*one.own, schedule=way), wanted, f"{dtype} {way}, with no number where no key is")
    module, given = compiler.load(decode.PROGRAM), Cached(torch.float32)
    for name in (decode.PROGRAM, decode.WHOLE):  # a schedule says which program, and a name is one of the first
        own = tilelink.schedule(module.program(name)).tile("merge", g=2)
        near(ops.decode_attention(*given.own, schedule=own), given.wanted(0.25)[0], f"by a schedule of {name}")
        assert own_module.of_library((decode.PROGRAM, decode.WHOLE), schedule_text(own), L=3).program.name == name
    assert own_module.of_library((decode.PROGRAM, decode.WHOLE), "gpu", L=1).program.name == decode.PROGRAM
    q, k, v, pages, lengths = one.own
    many = ops.decode_attention(*(torch.cat([x] * 4) if x is q else x for x in (q, k, v)), *[
        torch.cat([x] * 4) for x in (pages, lengths)
    ])  # fmt: skip
    near(many, torch.cat([one.wanted(0.25)[0]] * 4), "sequences that are not cut")
    nothing = ops.decode_attention(q[:0], k, v, pages[:0], lengths[:0], return_lse=True)
    assert nothing[0].shape == (0, 6, 16) and nothing[1].shape == (0, 6)
    some = 2 * dist.get_rank()
    with pytest.raises(ShapeError, match="calls decode_attention with"):
        ops.decode_attention(q[:some, :4], k, v, pages[:some], lengths[:some])  # calls that no rank knows
    rows = torch.zeros(1, 2, some, 16)
    with pytest.raises(ShapeError, match="calls attention with"):
        ops.attention(rows, rows, rows, method="ring")


def decoded_compiled() -> None:
    """torch.compile sees one operator, whose shapes are right."""
    for queries in (None, 3):
        case = Cached(torch.bfloat16, queries=queries)
        wanted = ops.decode_attention(*case.own)
        found = torch.compile(ops.decode_attention, fullgraph=True, backend="aot_eager")(*case.own)
        assert torch.equal(found, wanted)
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    q, k, v, pages, lengths = Cached(torch.float32).own
    for seen in (None, torch.full((4, 3), 5, dtype=torch.int32)):
        operands = (q.unflatten(1, (2, 3)), k, v, pages, lengths, seen, 0.25, group, "")
        torch.library.opcheck(torch.ops.tilelink.decode_attention.default, operands)


def decoded_mistakes() -> None:
    rank = dist.get_rank()
    q, k, v, pages, lengths = Cached(torch.float32).own
    cases: list[tuple[tuple[Tensor, ...], type[TileLinkError], str]] = [
        ((q[0], k, v, pages, lengths), ShapeError, r"q is \[6, 16\]"),
        ((q, k, v[:-1], pages, lengths), ShapeError, r"v_cache \[13, 4, 2, 16\], next to q"),
        ((q[..., :8], k, v, pages, lengths), ShapeError, r"next to q \[4, 6, 8\]"),
        ((q[:, :5], k, v, pages, lengths), ShapeError, "5 heads share 2 heads of keys"),
        ((q, k[:0], v[:0], pages, lengths), ShapeError, r"k_cache is \[0, 4, 2, 16\]"),
        ((q, k.half(), v, pages, lengths), DtypeError, "k_cache is torch.float16"),
        ((q, k[::2], v[::2], pages, lengths), ShapeError, "k_cache .* with strides"),
        ((q, k, v, pages[0], lengths), ShapeError, r"page_table is \[3\](?s:.*)\[4, most pages"),
        ((q, k, v, pages, lengths[:3]), ShapeError, r"cache_seqlens is \[3\](?s:.*)it is \[4\]"),
        ((q[:, None], k, v, pages, lengths[:3]), ShapeError, r"it is \[4\] or \[4, 1\]"),
        ((q, k, v, pages.long(), lengths), DtypeError, "page_table is torch.int64"),
        ((q, k, v, pages, lengths.float()), DtypeError, "cache_seqlens is torch.float32"),
        ((q.int(), k.int(), v.int(), pages, lengths), DtypeError, "q of decode_attention is torch.int32"),
        ((q, k, v.to_sparse(), pages, lengths), DtypeError, r"v_cache of decode_attention is torch\.sparse_coo"),
        ((q, k, v, cast(Any, pages.tolist()), lengths), DtypeError, "page_table of decode_attention is a list"),
    ]
    for operands, error, text in cases:
        with pytest.raises(error, match=text):
            ops.decode_attention(*operands)
    with pytest.raises(BindingError, match="has no gradients"):
        ops.decode_attention(q.clone().requires_grad_(), k, v, pages, lengths)
    with pytest.raises(UnknownNameError, match="nothing"):
        ops.decode_attention(q, k, v, pages, lengths, schedule="nothing")
    for wrong, text in (
        ((pages, lengths - 1), "cache_seqlens is from -1 to"), ((pages, lengths + 12), "room for 0 to 12 keys"),
        ((pages.where(lengths[:, None] == 0, 14), lengths), "page_table has keys in page 14"),
    ):  # fmt: skip
        with pytest.raises(BindingError, match=text):
            ops.decode_attention(q, k, v, *wrong)
    own: Any = {"error": RankError, "text": "rank 0 cannot"} if rank else {"error": BindingError, "text": "from -1"}
    with pytest.raises(own["error"], match=own["text"]):
        ops.decode_attention(q[:, None], k, v, pages, lengths[:, None] + rank - 1)
    with pytest.raises(RankError if rank else ShapeError, match="rank 0 cannot make the call" if rank else "5 heads"):
        ops.decode_attention(q if rank else q[:, :5], k, v, pages, lengths)
    unlike: dict[str, Any]
    for unlike in ({"scale": 1.0 + rank}, {"schedule": "unfused" if rank else None}):
        with pytest.raises(ShapeError, match="calls decode_attention with"):
            ops.decode_attention(q, k, v, pages, lengths, **unlike)


def run(names: list[str]) -> None:
    main(globals(), names, lambda name: None)


if __name__ == "__main__":
    run(sys.argv[1:])
