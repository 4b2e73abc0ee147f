"""Small programs that use each construct of the language, and how to emit them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tilelink import compiler
from tilelink.backend.context import Emitted
from tilelink.backend.emit import emit
from tilelink.lowering.bind import Bound, bind
from tilelink.planning.plan import make_plan
from tilelink.target import target as named_target

Numbers = dict[str, int | float | bool]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text with one program and at most one schedule, and its numbers."""

    text: str
    numbers: Numbers

    def module(self, name: str = "sample.tl") -> compiler.Module:
        return compiler.parse(self.text, name)

    def bound(self, *, ranks: int, target: str, dtype: str = "f32") -> Bound:
        module = self.module()
        schedule = module.schedules[0] if module.schedules else None
        return bind(module.programs[0], schedule, self.numbers, ranks, named_target(target), dtype)


def emitted(bound: Bound) -> Emitted:
    return emit(bound, make_plan(bound).thresholds)


def library_sample(file: str, schedule: str, **numbers: int) -> Bound:
    """ag_gemm and its like, for the CPU on 4 ranks."""
    module = compiler.parse((compiler.PROGRAMS / f"{file}.tl").read_text(), str(Path("somewhere") / f"{file}.tl"))
    chosen = next(s for s in module.schedules if s.name == schedule)
    program = next(p for p in module.programs if p.name == chosen.program)
    return bind(program, chosen, dict(numbers), 4, named_target("cpu"), "bf16")


SQUARE = Sample(
    text="""
program square(M, K):
    x : in [M, K]
    w : in [K, K]
    y : out [M, K]
    compute f(i: M):
        y[i, :] = dot(x[i, :], w[:, :])
""",
    numbers={"M": 20, "K": 100},
)

TRANSPOSED = Sample(
    text="""
program transposed(K):
    x : in [K, K]
    w : in [K, K]
    y : out [K, K]
    compute f(i: K):
        y[i, :] = dot(x[i, :] + w[i, :], w[:, :].T)
schedule s for transposed:
    f on sm, tile(i=16, k=32)
""",
    numbers={"K": 72},
)

COPY = Sample(
    text="""
program copy(K):
    x : in [K, K]
    y : out [K, K]
    comm f(s: 1):
        tile_push_data(y[:, :], x[:, :])
""",
    numbers={"K": 300},
)

SOFTMAX = Sample(
    text="""
program softmax(M, N):
    x : in [M, N]
    y : out [M, N]
    compute f(i: M):
        v = x[i, :]
        e = exp(v - max(v, axis=1)[:, None])
        y[i, :] = e / sum(e, axis=1)[:, None]
""",
    numbers={"M": 70, "N": 100},
)

SLICED = Sample(
    text="""
program sliced(M, N):
    x : in [M, N]
    b : in [N]
    y : out [M]
    compute f(i: M):
        y[i] = sum(x[i, :] * x[i, :] + b[:], axis=1) + max(x[i, :], axis=1)
schedule s for sliced:
    f on sm, tile(i=16, n=32)
""",
    numbers={"M": 40, "N": 100},
)

INTEGERS = Sample(
    text="""
program integers(M, N):
    x : in [M, N] i32
    y : out [M] i32
    z : out [M] i32
    compute f(i: M):
        y[i] = sum(x[i, :], axis=1)
        z[i] = max(x[i, :], axis=1)
""",
    numbers={"M": 20, "N": 100},
)

RANKS_LAST = Sample(
    text="""
program ranks_last(M):
    x : in [M, ranks]
    b : in [M]
    y : out [M]
    compute f(i: M):
        y[i] = sum(x[i, :] * b[i][:, None], axis=1)
""",
    numbers={"M": 20},
)

ATTENTION = Sample(
    text="""
program attention(H, S, D, scale: f32, causal: bool):
    q  : in        [H, S, D]
    k  : in        [H, S, D]
    v  : in        [H, S, D]
    ks : symmetric [ranks, H, S, D]
    vs : symmetric [ranks, H, S, D]
    o  : out       [H, S, D]

    comm gather(p: ranks, h: H, j: S):
        tile_push_data(ks[rank, h, j, :] @ p, k[h, j, :])
        tile_push_data(vs[rank, h, j, :] @ p, v[h, j, :])
        producer_tile_notify(ks[rank, h, j, :] @ p)
        producer_tile_notify(vs[rank, h, j, :] @ p)

    compute attn(h: H, i: S):
        state = online_softmax(f32)
        for (s: ranks, j: S):
            consumer_tile_wait(ks[s, h, j, :])
            consumer_tile_wait(vs[s, h, j, :])
            state = attend(state, q[h, i, :], ks[s, h, j, :], vs[s, h, j, :], scale, causal)
        o[h, i, :] = finish(state)

schedule s for attention:
    gather on copy_engine, tile(j=16)
    attn on sm, tile(i=16, j=16)
""",
    numbers={"H": 2, "S": 40, "D": 24, "scale": 0.25, "causal": True},
)

PICKED = Sample(
    text="""
program picked(B, M, K, N):
    rows : table [B] < M
    x : in [M, K]
    w : in [N, K]
    y : out [B, N]
    compute f(j: N):
        y[:, j] = dot(x[rows[:], :], w[j, :].T)
""",
    numbers={"B": 20, "M": 30, "K": 24, "N": 40},
)

ALL = {
    "square": SQUARE,
    "transposed": TRANSPOSED,
    "copy": COPY,
    "softmax": SOFTMAX,
    "sliced": SLICED,
    "integers": INTEGERS,
    "ranks_last": RANKS_LAST,
    "attention": ATTENTION,
}

CASTS = Sample(
    text="""
program casts(M, K, N):
    x : in [M, K]
    w : in [N, K]
    y : out [M, N]
    z : out [M, K] f32
    compute f(i: M, j: N):
        v = x[i, :]
        y[i, j] = dot(v, (w[j, :] + w[j, :]).T)
    compute g(i: M):
        b = x[i, :].to(bf16)
        z[i, :] = b * 3.0 + (x[i, :] + 1.0).to(bf16) * f32(rank)
""",
    numbers={"M": 20, "K": 24, "N": 40},
)
ALL["casts"] = CASTS


CONSTANT = r"(\w+)(?:: \w+\.constexpr)? = (\d+)"
HEAD = re.compile(rf"(?<=\):\n)(?:    {CONSTANT}(?:; {CONSTANT})*\n)+")


def unbroken(text: str) -> str:
    """Generated source with each statement in one line, however long it is."""
    made, depth = "", 0
    for line in text.splitlines(keepends=True):
        made = f"{made[:-1]} {line.lstrip()}" if depth else made + line
        if depth or line.lstrip()[:1] != "#":
            depth += sum((one in "([") - (one in ")]") for one in line)
    return made


def numbered(text: str) -> str:
    """Generated source with the numbers that its constants are, and products of them as one number.

    For tests that ask what a kernel does and not how it calls it. Its lines are not broken.
    """
    return "".join(map(_numbered, re.split(r"(?m)^(?=@|def )", unbroken(text))))


def _numbered(function: str) -> str:
    head = HEAD.search(function)
    values = dict(re.findall(CONSTANT, head[0])) if head else {}
    lines = (HEAD.sub("", function) if head else function).split("\n")
    word = re.compile(r"(?<!')\b\w+\b(?!'|=)")
    plain = [one if one.lstrip()[:1] == "#" else word.sub(lambda m: values.get(m[0], m[0]), one) for one in lines]
    return "\n".join(map(_folded, plain))


def _summed(found: re.Match[str]) -> str:
    left, op, right = (part for part in found.groups() if part is not None)
    return str(int(left) + int(right) * (1 if op == "+" else -1))


def _folded(line: str) -> str:
    """With products, sums and differences of numbers as one, but no products that are divided by."""
    folded = re.sub(r"(?<![\w.])(?<!// )(?<!% )(\d+) \* (\d+)(?![\w.])", lambda m: str(int(m[1]) * int(m[2])), line)
    folded = re.sub(r"(?<!\w)\((\d+) ([+-]) (\d+)\)|(?<=, )(\d+) ([+-]) (\d+)(?=[,)])", _summed, folded)
    folded = re.sub(r"(?<!\w)\((\d+)\)", r"\1", folded)
    return folded if folded == line else _folded(folded)


def in_dialect(bound: Bound, dialect: str) -> Bound:
    """Return the same program, lowered for kernels in another dialect."""
    made = bound
    return bind(
        made.source, made.schedule, made.numbers, made.ranks, made.target, made.dtype, nodes=made.nodes, dialect=dialect
    )
