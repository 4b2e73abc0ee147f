"""Refused programs and inputs: waits that never end, and inputs that do not fit."""

import pytest
import torch

from tests.reference import texts
from tilelink import compiler
from tilelink.errors import AccountingError, BindingError, DtypeError, ProgressError

HEAD = "program p(M):\n    x : in [M]\n    h : symmetric [M]\n    y : out [M]\n"
CIRCLE = HEAD + (
    "    compute f(i: M):\n        peer_tile_wait(h[i])\n        y[i] = h[i]\n"
    "        tile_push_data(h[i] @ (rank + 1), x[i])\n        peer_tile_notify(h[i] @ (rank + 1))\n"
)


def test_a_cycle_of_waits_is_refused() -> None:
    with pytest.raises(ProgressError) as caught:
        texts.outputs(CIRCLE, 3, {"M": 4})
    for rank in range(3):
        assert f"rank {rank}, f waits for h[i]" in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.line == 6


def test_a_cycle_of_reads_before_writes_is_refused() -> None:
    text = "program p(M):\n    a : local [M]\n    b : local [M]\n    y : out [M]\n"
    text += (
        "    compute f(i: M):\n        a[i] = b[i]\n        producer_tile_notify(a[i])\n"
        "    compute g(i: M):\n        b[i] = a[i]\n        producer_tile_notify(b[i])\n        y[i] = a[i]\n"
    )
    with pytest.raises(ProgressError) as caught:
        texts.one(text, {"M": 4})
    assert "rank 0, f reads b[i], before it is written" in caught.value.message
    assert "rank 0, g reads a[i], before it is written" in caught.value.message


def test_a_wait_after_the_notify_makes_no_cycle() -> None:
    lines = CIRCLE.splitlines()
    given, out = texts.outputs("\n".join([*lines[:5], *lines[7:], *lines[5:7]]) + "\n", 3, {"M": 4})
    assert all(torch.equal(out[r]["y"], given[r - 1]["x"]) for r in range(3))


@pytest.mark.parametrize(
    "notify",
    ["", "        producer_tile_notify(h[i])\n", "        if rank == 0:\n            peer_tile_notify(h[i])\n"],
    ids=["none", "another kind", "one rank only"],
)
def test_a_wait_without_a_notify_is_refused(notify: str) -> None:
    text = HEAD + "    compute f(i: M):\n" + notify + "        peer_tile_wait(h[i])\n        y[i] = x[i]\n"
    with pytest.raises(AccountingError, match=r"f waits for h\[i\], which no stage notifies"):
        texts.outputs(text, 2, {"M": 4})


def test_a_wait_for_more_than_is_notified_is_refused() -> None:
    text = HEAD + "    compute f(j: 1):\n        peer_tile_notify(h[0])\n"
    text += "        peer_tile_wait(h[:])\n        y[:] = x[:]\n"
    with pytest.raises(AccountingError, match="no stage notifies"):
        texts.outputs(text, 2, {"M": 4})


def test_a_wait_needs_all_notifies_it_will_ever_get() -> None:
    """Rank 0 sends its second notify after a wait that only rank 1 can end, and rank 1 does so after its own wait."""
    text = HEAD + (
        "    compute f(i: M):\n        peer_tile_notify(h[i] @ 1)\n        if rank == 1:\n"
        "            peer_tile_wait(h[i])\n        peer_tile_notify(h[i] @ 0)\n"
        "        if rank == 0:\n            peer_tile_wait(h[i])\n            peer_tile_notify(h[i] @ 1)\n"
        "        y[i] = x[i]\n"
    )
    with pytest.raises(ProgressError, match="rank 0, f waits"):
        texts.outputs(text, 2, {"M": 4})


TABLE = (
    "program p(M):\n    t : table [M] < M\n    x : in [M]\n    y : out [M]\n"
    "    compute f(b: M):\n        y[b] = x[t[b]]\n"
)
ROWS, X = torch.tensor([0, 1, 1]), torch.zeros(3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"t": ROWS}, "rank 0 has no x"),
        ({"x": X}, "rank 0 has no t"),
        ({"t": ROWS, "x": torch.zeros(4)}, r"x of rank 0 has shape \[4\], not \[3\]"),
        ({"t": torch.tensor([0, 3, 1]), "x": X}, r"t\[1\] of rank 0 is 3"),
        ({"t": torch.tensor([0, -1, 1]), "x": X}, r"t\[1\] of rank 0 is -1"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(BindingError, match=message):
        texts.one(TABLE, {"M": 3}, **given)
    assert torch.equal(texts.one(TABLE, {"M": 3}, t=ROWS, x=X)["y"], X)


def test_parameters_ranks_and_element_types_that_do_not_fit_are_refused() -> None:
    program, given = texts.program(TABLE), [{"t": ROWS, "x": X}]
    with pytest.raises(BindingError, match="parameter 'M' has no value"):
        texts.run(program, given, {})
    with pytest.raises(BindingError, match="inputs of 1 ranks for 2 ranks"):
        texts.run(program, given, {"M": 3}, ranks=2)
    with pytest.raises(DtypeError, match="no element type f8"):
        texts.run(program, given, {"M": 3}, dtype="f8")


STEPS = """
program steps(H, T, TP):
    x : in [H]
    u : symmetric [TP, H]
    y : out [H]

    compute init(i: H):
        u[1, i] = x[i]
        producer_tile_notify(u[1, i])

    compute step(t: T, i: H):
        consumer_tile_wait(u[1 + t, i])
        u[2 + t, i] = 0.25 * u[1 + t, i]
        producer_tile_notify(u[2 + t, i])

    compute final(i: H):
        consumer_tile_wait(u[T + 1, i])
        y[i] = u[T + 1, i]

schedule s for steps:
    step on sm, tile(t=1, i=8), order(t, i)
    u channel(tp=1)
"""


def test_a_program_that_is_safe_only_with_small_tiles_is_refused() -> None:
    module = compiler.parse(STEPS)
    program, dims = module.program(), {"H": 8, "T": 2, "TP": 4}
    given = [{"x": torch.arange(8.0)}, {"x": torch.ones(8)}]
    outputs = compiler.compile(program, module.schedules[0], ranks=2, dims=dims)(given)
    assert all(torch.equal(own["y"], one["x"] / 16) for own, one in zip(outputs, given, strict=True))
    with pytest.raises(ProgressError, match="the reference, in which every index is one tile, cannot follow: "):
        compiler.reference(program, given, dims=dims)
