"""Iterations that a launch leaves out: what they would have written is not there.

Each program is refused, or the reference runs it for all values.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

import tilelink
from tests.tiers import thorough
from tilelink.errors import TileLinkError

RANGES = ("M", "M by 1", "M[: n]", "M[: n] by 1", "M[n :]", "M[n :] by 1", "M[b : n]", "M[b : n] by 1", "M[3 : n] by 1")
VALUES = ({"n": 0, "b": 0}, {"n": 2, "b": 1}, {"n": 6, "b": 3}, {"n": 3, "b": 6})
HEAD = """
program p(M = 6, N = 4):
    n : in [] <= M
    b : in [] <= M
    place : in [M] < M distinct
    x : in [M, N]
    h : local [{rows}, N]
    y : out [{size}, N]
"""
DOMAIN = "    compute put(k: {written}, j: N):\n        {region} = x[k, j]\n"
LOOP = "    compute put(j: N):\n        for (k: {written}):\n            {region} = x[k, j]\n"
TAKE = """
    compute take(j: N):
        consumer_tile_wait(h[:, :])
        for (i: {read}):
            y[i, j] = {region}
"""


def accepted(text: str) -> bool:
    """Whether a program is accepted; one that is runs in the reference, whatever a launch gives."""
    program = tilelink.parse(text).program()
    try:
        kernel = tilelink.compile(program, ranks=1, dims={"M": 6, "N": 4})
    except TileLinkError:
        return False
    for given in VALUES:
        entries = {name: torch.tensor(value, dtype=torch.int32) for name, value in given.items()}
        place = torch.tensor([3, 1, 5, 0, 2, 4], dtype=torch.int32)
        kernel.reference([{**entries, "place": place, "x": torch.ones(6, 4)}])
    return True


def read_back(put: str, written: str, read: str, region: str) -> str:
    """A program that reads elements of `h` in a range, of which a stage has written those of another range."""
    rows = "M" if region == "h[k, j]" else "2 * M"
    text = HEAD.format(size="M[: n]" if read.startswith("M[: n]") else "M", rows=rows)
    text += put.format(written=written, region=region)
    text += "        producer_tile_notify(h[:, :])\n"
    return text + TAKE.format(read=read, region=region.replace("k", "i"))


@thorough(unless=lambda put, region: (put is DOMAIN) == (region == "h[k, j]"))
@pytest.mark.parametrize("region", ["h[k, j]", "h[2 * k, j]", "h[k + 1, j]"])
@pytest.mark.parametrize("put", [DOMAIN, LOOP], ids=["domain", "loop"])
def test_what_iterations_left_out_is_not_read(put: str, region: str) -> None:
    ranges = RANGES if region == "h[k, j]" else [one for one in RANGES if one.endswith("by 1")]
    reads = [one for one in ranges if one.split(" by")[0] in ("M", "M[: n]")]
    found = {pair: accepted(read_back(put, *pair, region)) for pair in product(ranges, reads)}
    assert all(found["M by 1", read] for read in reads)
    assert found["M[: n] by 1", "M[: n] by 1"], "the same iterations are there"
    assert not found["M[: n] by 1", "M by 1"]
    for written in [one for one in ranges if "[:" not in one and "[" in one]:
        assert not any(found[written, read] for read in reads), written


@pytest.mark.parametrize("put", [DOMAIN, LOOP], ids=["domain", "loop"])
@pytest.mark.parametrize("region", ["y[k, j]", "y[place[k], j]"])
def test_what_iterations_left_out_is_no_output(put: str, region: str) -> None:
    found = {one: accepted(HEAD.format(size="M", rows="M") + put.format(written=one, region=region)) for one in RANGES}
    assert [one for one, well in found.items() if well] == ["M", "M by 1"]


def test_parts_that_begin_alike_are_alike() -> None:
    """A reader of the same part, by the same entries, reads what was written; one that begins before does not."""
    inner = "        for (i: M[b : n] by 1):\n            y[j] += h[i, j]\n"
    text = HEAD.format(size="M", rows="M").replace("y : out [M, N]", "y : inout [N] f32 sum")
    text += LOOP.format(written="M[b : n] by 1", region="h[k, j]") + "        producer_tile_notify(h[:, :])\n"
    text += "    compute take(j: N):\n        consumer_tile_wait(h[:, :])\n" + inner
    same = tilelink.parse(text).program()
    tilelink.plan(same, ranks=1, dims={"M": 6, "N": 4})
    for other, left in (("M[: n] by 1", "from b"), ("M[b :] by 1", "up to n"), ("M[0 : n] by 1", "from b")):
        changed = tilelink.parse(text.replace(inner, inner.replace("M[b : n] by 1", other))).program()
        with pytest.raises(TileLinkError, match=rf"reads h of rank 0, which .* writes {left} of rank 0"):
            tilelink.plan(changed, ranks=1, dims={"M": 6, "N": 4})


@pytest.mark.parametrize(("bound", "well"), [("<= n", True), ("< n + 1", True), ("< n", True), ("<= M", False)])
def test_an_end_is_no_more_than_the_bound_of_its_entry(bound: str, well: bool) -> None:
    text = HEAD.format(size="M[: b]", rows="M").replace("b : in [] <= M", f"b : in [] {bound}")
    text += LOOP.format(written="M[: n]", region="h[k, j]") + "        producer_tile_notify(h[:, :])\n"
    program = tilelink.parse(text + TAKE.format(read="M[: b]", region="h[i, j]")).program()
    if well:
        tilelink.plan(program, ranks=1, dims={"M": 6, "N": 4})
        return
    with pytest.raises(TileLinkError, match=r"reads h of rank 0, which .* writes up to n"):
        tilelink.plan(program, ranks=1, dims={"M": 6, "N": 4})


@pytest.mark.parametrize(("end", "well"), [("L", False), ("M", True)])
def test_an_iteration_ends_with_its_dimension(end: str, well: bool) -> None:
    """An end beyond the dimension of a writer is one of a reader whose dimension is larger."""
    text = f"""
program p(M = 6, L = 12, N = 4):
    n : in [] <= {end}
    b : in [] <= M
    x : in [M, N]
    z : in [L, N]
    h : local [N]
    y : out [N]
    compute put(k: M[b : n], j: N):
        h[j] = x[0, j]
        producer_tile_notify(h[j])
    compute take(j: N):
        consumer_tile_wait(h[j])
        acc = zeros(f32)
        for (q: L[b : n]):
            acc += h[j] * sum(z[q, j], axis=0)
        y[j] = acc
schedule whole for p:
    put tile(k=8, j=4)
    take tile(q=16, j=4)
"""
    module = tilelink.parse(text)
    program = module.program()
    if well:
        tilelink.plan(program, module.schedule("whole", program), ranks=1, dims={"M": 6, "L": 12, "N": 4})
        return
    with pytest.raises(TileLinkError, match=r"reads h of rank 0, which .* writes in some launches only"):
        tilelink.plan(program, module.schedule("whole", program), ranks=1, dims={"M": 6, "L": 12, "N": 4})
