"""How gradients of attention over ranks are computed where nobody says: by measured times, and by the model's."""

import json
import logging
from pathlib import Path

import pytest

from tilelink.errors import ScheduleError, UnknownNameError
from tilelink.ops import graded_attention
from tilelink.ops.graded_attention import ROLES, Shape, bound_gradients, chosen, program_of, unfused_seconds
from tilelink.simulator.machine import load_machine
from tilelink.target import target

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
GPU, KEY_HEADS = "NVIDIA H200", 8


def queries(causal: bool, heads: int, rows: int, depth: int = 128) -> Shape:
    """The shape of queries as the operator's kernels take it."""
    blocks = (2, rows // 256, 128) if causal else (rows,)
    return (KEY_HEADS, heads // KEY_HEADS, *blocks, depth)


def measured() -> list[tuple[Shape, int, float, float]]:
    """Queries, ranks, and the microseconds of unfused gradients and of the kernel."""
    found: list[tuple[Shape, int, float, float]] = []
    report = json.loads((RESULTS / "context_parallel_backward_2xH200.json").read_text(encoding="utf-8"))
    for case in report["cases"]:
        how, heads, depth, rows = case["name"].replace(",", "").replace(" heads of", "").split()[:4]
        us = {row["name"].partition(",")[0]: row["us"] for row in case["rows"]}
        shape = queries(how == "causal", int(heads), int(rows), int(depth))
        found.append((shape, report["ranks"], us["ours"], us["gradients by a kernel"]))
    return found


@pytest.mark.parametrize(("shape", "ranks", "unfused", "kernel"), measured())
def test_what_is_chosen_was_not_slower(shape: Shape, ranks: int, unfused: float, kernel: float) -> None:
    way = chosen(shape, ranks, "bf16", GPU)
    assert way == "unfused" or kernel < unfused
    assert way == ROLES or kernel > 0.98 * unfused, "much is left"
    assert abs(unfused_seconds(shape, ranks, load_machine("8xH200")) * 1e6 / unfused - 1) < 0.1


@pytest.mark.parametrize(
    ("shape", "ranks", "gpu"),
    [(queries(True, 32, 4096), 2, "NVIDIA A10G"), (queries(True, 32, 4096), 16, GPU), ((8, 4, 300, 128), 2, GPU),
     (queries(False, 32, 1024, 256), 2, GPU), (queries(True, 32, 4096), 2, "NVIDIA A100-SXM4-80GB")],
)  # fmt: skip
def test_what_the_model_cannot_tell_is_unfused(shape: Shape, ranks: int, gpu: str) -> None:
    """A GPU that is not described, ranks of several nodes, rows and heads that the kernel has not, and no roles."""
    assert chosen(shape, ranks, "bf16", gpu) == "unfused"


def test_the_choice_is_by_the_predicted_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel is asked for up to the limit, and with few tiles simulated whole."""
    shape, limits = queries(True, 32, 2048), list[float]()
    unfused = unfused_seconds(shape, 2, load_machine("8xH200"))
    caplog.set_level(logging.INFO, "tilelink.ops")
    for by_few, whole, way in (
        (0.94, 9.0, ROLES),
        (0.96, 0.5, "unfused"),
        (None, 0.94, ROLES),
        (None, None, "unfused"),
    ):

        def few(_: object, machine: object, limit: float, share: float | None = by_few) -> float | None:
            limits.append(limit)
            return None if share is None else share * unfused

        def all_of(*_: object, share: float | None = whole) -> float | None:
            return None if share is None else share * unfused

        monkeypatch.setattr(graded_attention, "seconds_by_few", few)
        monkeypatch.setattr(graded_attention, "predicted_seconds", all_of)
        chosen.cache_clear()
        assert chosen(shape, 2, "bf16", GPU) == way
    chosen.cache_clear()
    assert limits == [0.95 * unfused] * 4
    assert f"takes gpu_roles; the kernel is predicted to take {0.94 * unfused * 1e6:.0f} us" in caplog.text


def test_a_kernel_that_is_asked_for_and_cannot_be_is_refused() -> None:
    """By an error that says why: of the sizes, of the type, and of the name."""
    processor = target("sm_90")
    for shape, dtype, text in (
        (queries(True, 32, 1024, 256), "bf16", "its consumers hold 336 values"),
        ((8, 4, 300, 128), "bf16", "the end of i cuts a tile of q"),
        (queries(True, 32, 1024), "f32", "its operands are f32"),
    ):
        with pytest.raises(ScheduleError, match=text):
            bound_gradients(shape, ROLES, 2, dtype, processor)
    with pytest.raises(UnknownNameError, match="no schedule 'nonsense' for ag_attention_gradients"):
        bound_gradients((8, 4, 256, 128), "nonsense", 2, "bf16", processor)
    bound = bound_gradients(queries(True, 32, 1024), ROLES, 2, "bf16", processor)
    text = str(bound.schedule)
    assert bound_gradients(queries(True, 32, 1024), text, 2, "bf16", processor).source == bound.source
    assert program_of(queries(True, 32, 1024)) == "zigzag_attention_gradients"
