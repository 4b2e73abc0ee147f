"""Generated kernels of programs with integers of the launch, on CPU ranks, beside the reference."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.test_choices import tilelink as command
from tests.reference import launch_texts, test_launch
from tests.tiers import thorough
from tilelink import compiler
from tilelink.reference import trial

RANKS = 3
CASES = {
    **launch_texts.SIZES,
    "flow": (test_launch.FLOW, {"M": 5, "N": 4}),
    "elements": (test_launch.ELEMENTS, {"T": 9, "E": 3}),
    "told": (test_launch.TOLD.replace("3 * m - 1", "m"), {"M": 4}),
}


@thorough(unless=lambda name: name in ("moe", "experts", "told"))
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_is_right_for_every_routing(name: str) -> None:
    text, dims = CASES[name]
    program = compiler.parse(text).program()
    kernel = compiler.compile(program, ranks=RANKS, dims=dims)
    options: dict[str, Any] = {"ranks": RANKS, "dims": dims, "dtype": "f32", "launches": 1}
    launches = [
        trial.random_inputs(program, **options, seed=seed, routing=routing)[0]
        for seed, routing in enumerate(("uniform", "zipf:1.2", "one", "empty", "full", "uniform"))
    ]
    result = kernel.run(launches, seed=1, max_delay_s=0.0005)
    for given, outputs in zip(launches, result.outputs, strict=True):
        expected = kernel.reference(given)
        for tensor in outputs[0]:
            sides = trial.compared(outputs, expected, tensor)
            assert trial.relative_error(*sides) < 1e-5 and trial.no_number(*sides) is None


def test_the_command_draws_a_routing(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("launch") / "rows.tl"
    path.write_text(launch_texts.ROWS)
    for routing in ("zipf:2", "empty"):
        done = command(
            "run", str(path), "--ranks", "2", "--set", "Ms=9", "--routing", routing, "--repeat", "2", "--json"
        )
        assert done.exit_code == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["ok"] and report["errors"]["y"] < 1e-5 and not report["no_numbers"]
