"""`roles` of products of 8-bit floats, whose sums are those of f32, and vectors along the rows of their tiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import RolesError, ScheduleError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.lowering.rings import RETIRE, Roles
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.verifier import refusals, verify

TEXT = """program scaled(M, N, K):
    x : in  [M, K]{type}
    w : in  [N, K]{type}
    u : in  [M] f32
    v : in  [N] f32
    z : in  [M, N, 2]
    t : in  [K, N]{type}
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = {value}

schedule one for scaled:
    gemm on sm, tile(i=128, j={columns}, k={block}), roles(consumers=2, buffers={buffers}){more}
"""
SCALED = "dot(x[i, :], w[j, :].T) * u[i][:, None] * v[j][None, :]"


def bound(
    type: str = " f8e4m3", value: str = SCALED, columns: int = 128, block: int = 128, buffers: int = 4, more: str = "",
    **sizes: int,
) -> Bound:  # fmt: skip
    text = TEXT.format(type=type, value=value, columns=columns, block=block, buffers=buffers, more=more)
    module = compiler.parse(text, "scaled.tl")
    dims = {"M": 256, "N": 256, "K": 256} | sizes
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims, dtype="bf16", target="sm_90")


def roles(made: Bound) -> Roles:
    found = made.stages["gemm"].roles
    assert found is not None
    return found


@pytest.mark.parametrize(("type", "block"), [(" f8e4m3", 128), (" f8e5m2", 256), (" f8e4m3", 64)])
def test_products_of_a_buffer_are_added_up_in_f32(type: str, block: int) -> None:
    made = bound(type, block=block, buffers=2)
    assert [str(step) for step in roles(made).operands.reader.steps] == [
        "await full 0", "multiply", "retire 0", "arrive empty 0", "sum",
    ]  # fmt: skip
    verify(make_plan(made))
    text = listing(made)
    again = parse_lowered(text)
    assert again.stages["gemm"].roles == roles(made) and listing(again) == text


def test_roles_compute_what_is_meant() -> None:
    made = bound(value=f"silu({SCALED}) + z[i, j, 1]")
    verify(make_plan(made))
    (inputs,) = random_inputs(made.source, ranks=2, dims=made.numbers, dtype="bf16", launches=1, seed=5)
    wanted = reference(made.source, inputs, made.numbers, dtype="bf16")
    found, _ = run_roles(made, inputs)
    assert all(torch.equal(found[rank]["y"], wanted[rank]["y"]) for rank in range(2))


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("retire 0; arrive empty 0; sum", "retire 0; arrive empty 0", "its consumers add up products of 8-bit floats"),
    ("retire 0; arrive empty 0; sum", "sum; retire 0; arrive empty 0", "a consumer adds a product that is in flight"),
    ("retire 0; arrive empty 0; sum", "retire 1; arrive empty 1; sum", "a consumer adds a product that is in flight"),
    ("; sum", "; sum; sum", "its consumers add up products of 8-bit floats"),
    ("await full 0; multiply; retire 0; arrive empty 0; sum", "sum; await full 0; multiply; retire 0; arrive empty 0",
     "its consumers add up products of 8-bit floats"),
])  # fmt: skip
def test_sums_of_a_lowered_program_that_would_be_wrong_are_refused(old: str, new: str, reason: str) -> None:
    made = bound()
    text = listing(made)
    assert text.count(old) == 1
    again = parse_lowered(text.replace(old, new))
    wrong = replace(made.stages["gemm"], roles=again.stages["gemm"].roles)
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "gemm": wrong})))
    assert isinstance(found, RolesError) and reason in found.message


def test_products_of_wider_elements_are_not_added_up_apart() -> None:
    made = bound("", columns=256, block=64)
    ring = roles(made).operands
    narrow = roles(bound()).operands.reader
    wrong = replace(roles(made), operands=replace(ring, reader=narrow))
    stage = replace(made.stages["gemm"], roles=wrong)
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "gemm": stage})))
    assert isinstance(found, RolesError) and "those of no others" in found.message
    assert any(step.word == RETIRE and step.number for step in ring.reader.steps)


@pytest.mark.parametrize(("columns", "block", "reason"), [
    (256, 128, "hold 256 values in each thread, and 206 fit"), (128, 32, "is none of 64, 128, 256"),
])  # fmt: skip
def test_tiles_that_do_not_fit_are_refused(columns: int, block: int, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        bound(columns=columns, block=block)


def test_operands_of_other_types_are_refused() -> None:
    with pytest.raises(ScheduleError, match="its operands are f32, not both bf16 or f16 or f8e4m3 or f8e5m2") as own:
        bound(" f32", value="dot(x[i, :], w[j, :].T)", block=64)
    assert own.value.hint and "--dtype" not in own.value.hint


def test_rows_are_contracted_with_16_bits_alone() -> None:
    with pytest.raises(ScheduleError, match="products of 8-bit floats contract the last dimension of both operands"):
        bound(value="dot(x[i, :], t[:, j])")
    assert roles(bound(" bf16", value="dot(x[i, :], t[:, j])", block=64)).n_major


def test_operands_without_a_type_of_their_own_may_have_another_one() -> None:
    text = "program p(M, N, K):\n    x : in [M, K]\n    w : in [N, K]\n    y : out [M, N]\n"
    text += "    compute mul(i: M, j: N):\n        y[i, j] = dot(x[i, :], w[j, :].T)\n"
    text += "schedule s for p:\n    mul tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)\n"
    module = compiler.parse(text)

    def compiled(dtype: str) -> Bound:
        dims = {"M": 1024, "N": 1024, "K": 1024}
        one = module.schedules[0]
        return compiler.bound(module.programs[0], one, ranks=1, dims=dims, target="sm_90", dtype=dtype)

    with pytest.raises(ScheduleError, match="its operands are f32") as caught:
        compiled("f32")
    assert caught.value.hint and caught.value.hint.startswith("--dtype bf16 (in Python dtype=")
    assert compiled("bf16").stages["mul"].roles


def test_vectors_are_loaded_once_and_places_follow_the_index() -> None:
    made = bound(value=f"{SCALED} + z[i, j, 1]")
    lines = [line.strip() for line in emit(made, make_plan(made).thresholds).text.splitlines()]
    pieces = next(n for n, line in enumerate(lines) if line.startswith("for piece in gl.static_range("))
    rows = [n for n, line in enumerate(lines) if "= gl.load(u + " in line]
    columns = [n for n, line in enumerate(lines) if "gl.load(v + " in line]
    assert len(rows) == len(columns) == 1 and lines[columns[0]].count("gl.load(v + ") == 2
    awaited = max(n for n, line in enumerate(lines[:pieces]) if line.startswith("roles.wait(full_barriers"))
    multiplied = max(n for n, line in enumerate(lines[:pieces]) if "roles.multiply(" in line)
    assert awaited < rows[0] < columns[0] < multiplied < pieces
    (place,) = {line for line in lines if line.startswith("offsets") and "[:, None]" in line and "* 2" in line}
    assert "rows" in place.split("[:, None]")[0] and "columns" in place.split("[None, :]")[0].split("+")[-1]
