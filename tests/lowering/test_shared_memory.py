# pyright: basic
"""Tiles that no processor can hold are refused with the place where they are asked for."""

from dataclasses import replace

import pytest

from tilelink import compiler
from tilelink.errors import TileSizeError
from tilelink.lowering.shared_memory import does_not_fit, least

TEXT = """
program plain(M, N, K):
    x : in [M, K]
    w : in [N, K]
    y : out [M, N]

    compute mul(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule s for plain:
    mul {}
"""


def planned(parts: str, target: str = "sm_90", text: str = TEXT, **dims: int):
    module = compiler.parse(text.format(parts), "plain.tl")
    sizes = {"M": 4096, "N": 4096, "K": 4096, **dims}
    return compiler.plan(module.programs[0], module.schedules[0], ranks=1, dims=sizes, dtype="bf16", target=target)


def test_blocks_that_shared_memory_cannot_hold_are_refused() -> None:
    with pytest.raises(TileSizeError) as caught:
        planned("tile(i=256, j=256, k=256), num_stages 4, num_warps 8")
    assert "stage mul takes 1,048,576 bytes of shared memory or more, 4 times 262,144" in caught.value.message
    assert "a program of sm_90 has 232,448" in caught.value.message
    assert caught.value.location is not None and caught.value.location.line == 11
    assert "smaller tiles than i=256, j=256, a smaller block than 256" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("parts", "target", "fits"),
    [
        ("tile(i=128, j=256, k=64), num_stages 4, num_warps 8", "sm_90", True),
        ("tile(i=128, j=256, k=64), num_stages 5, num_warps 8", "sm_90", False),
        ("tile(i=128, j=256, k=64), num_stages 4, num_warps 8", "sm_80", True),
        ("tile(i=128, j=256, k=64), num_stages 4, num_warps 8", "sm_89", False),
        ("tile(i=256, j=256, k=256), num_stages 4, num_warps 8", "cpu", True),  # an interpreter has room
    ],
)
def test_what_fits_depends_on_the_target(parts: str, target: str, fits: bool) -> None:
    if fits:
        assert planned(parts, target).tasks
    else:
        with pytest.raises(TileSizeError, match="of shared memory"):
            planned(parts, target)


@pytest.mark.parametrize("place", ["0 + i", "M // 2 + i", "M - M + i"])
def test_tiles_that_begin_elsewhere_take_as_much(place: str) -> None:
    text = TEXT.replace("compute mul(i: M,", "compute mul(i: M // 2,").replace("x[i, :]", f"x[{place}, :]")
    text = text.replace("y : out [M, N]", "y : out [M // 2, N]")
    with pytest.raises(TileSizeError, match="takes 327,680 bytes of shared memory or more, 5 times 65,536"):
        planned("tile(i=256, j=256, k=64), num_stages 5, num_warps 8", text=text)


def test_a_value_that_triton_cannot_hold_is_refused_where_its_tile_is_asked_for() -> None:
    with pytest.raises(TileSizeError) as caught:
        planned("tile(i=4096, j=4096)", "cpu")
    assert "what goes to y of stage mul has 4,096 x 4,096 elements in a tile" in caught.value.message
    assert "1,048,576 at most" in caught.value.message and caught.value.hint == "a smaller tile(i=4096)"
    assert (caught.value.location and caught.value.location.line) == 11
    assert (caught.value.related and caught.value.related.line) == 8


@pytest.mark.parametrize(("rows", "fits"), [(1024, True), (1025, False)])
def test_sizes_are_rounded_up_to_powers_of_two(rows: int, fits: bool) -> None:
    """1025 x 1000 elements are few enough, 2048 x 1024 are not."""
    if fits:
        assert planned(f"tile(i={rows}, j=1000)", "cpu").tasks
    else:
        with pytest.raises(TileSizeError, match="1,025 x 1,000"):
            planned(f"tile(i={rows}, j=1000)", "cpu")


def test_a_whole_dimension_counts_and_copies_do_not() -> None:
    named = TEXT.replace("        y[i, j]", "        row = x[i, :]\n        y[i, j]")
    with pytest.raises(TileSizeError, match="row of stage mul has 64 x 40,000"):
        planned("tile(i=64)", "cpu", named, K=40000)
    copied = TEXT.replace("dot(x[i, :], w[j, :].T)", "x[i, j]").replace("[M, K]", "[M, N]")
    assert planned("tile(i=4096, j=4096)", "cpu", copied).tasks == 1


@pytest.mark.parametrize(("warps", "blocks"), [(4, 3), (8, 3), (2, 2), (1, 2)])
def test_programs_of_fewer_than_four_warps_multiply_out_of_registers(warps: int, blocks: int) -> None:
    """Then the block at hand takes no shared memory, only those on their way do."""
    (need,) = least(planned(f"tile(i=128, j=128, k=64), num_stages 3, num_warps {warps}").bound)
    assert need.buffers == blocks


@pytest.mark.parametrize(("dtype", "item"), [("", 1), ("f32", 4)])
def test_a_flat_loop_has_its_results_beside_its_operands(dtype: str, item: int) -> None:
    text = TEXT.replace("y : out [M, N]", f"y : out [M, N] {dtype}")
    bound = planned("tile(i=128, j=128, k=64), num_stages 3, num_warps 8, flatten", text=text).bound
    room = max(need.bytes for need in least(bound)) + item * 128 * 128
    assert does_not_fit(replace(bound, target=replace(bound.target, shared_memory=room))) is None
    error = does_not_fit(replace(bound, target=replace(bound.target, shared_memory=room - 1)))
    assert error is not None and f"stage mul takes {room:,} bytes" in error.message
    assert f"and {item * 128 * 128:,} for results, and a program of sm_90 has {room - 1:,}" in error.message


def test_what_takes_all_of_shared_memory_fits() -> None:
    bound = planned("tile(i=128, j=256, k=64), num_stages 4, num_warps 8").bound
    most = max(need.bytes for need in least(bound))
    assert does_not_fit(replace(bound, target=replace(bound.target, shared_memory=most))) is None
    assert does_not_fit(replace(bound, target=replace(bound.target, shared_memory=most - 1))) is not None
