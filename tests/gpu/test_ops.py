"""Operators on GPUs."""

import re
from pathlib import Path

import pytest

from tests.gpu.campaign import LIMITS_S
from tests.gpu.ranks import torchrun

SCENARIOS = [name for name in LIMITS_S if name.startswith("ops_")]


@pytest.mark.gpus2
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_two_gpus(scenario: str) -> None:
    torchrun(2, "-m", "tests.gpu.worker", scenario, limit_s=LIMITS_S[scenario])


@pytest.mark.gpus4
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_four_gpus(scenario: str) -> None:
    torchrun(4, "-m", "tests.gpu.worker", scenario, limit_s=LIMITS_S[scenario])


@pytest.mark.gpus8
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_eight_gpus(scenario: str) -> None:
    torchrun(8, "-m", "tests.gpu.worker", scenario, limit_s=LIMITS_S[scenario])


@pytest.mark.gpus2
def test_the_layers_of_the_example_train_as_plain_ones() -> None:
    assert "the same losses" in torchrun(2, "examples/03_tensor_parallel_mlp.py").stdout


@pytest.mark.gpus2
def test_experts_train_as_in_plain_torch() -> None:
    assert "the same losses" in torchrun(2, "examples/10_mixture_of_experts.py").stdout


@pytest.mark.gpus2
def test_a_kernel_of_ones_own_trains_as_a_plain_module() -> None:
    said = torchrun(2, "examples/05_your_kernel.py").stdout
    assert "the same losses" in said and "mixed on 2 x " in said


@pytest.mark.gpus2
def test_the_page_of_kernels_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "your_kernel.md"
    script = tmp_path / "script.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)))
    assert "hand_over on 2 x " in torchrun(2, str(script)).stdout


@pytest.mark.gpus2
def test_the_page_of_graphs_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "decode.md"
    script = tmp_path / "script.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)))
    torchrun(2, str(script))


@pytest.mark.gpus2
def test_a_benchmark_runs(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ("--op", "ag_gemm", "--shapes", "mlp-1@2048", "--samples", "3", "--warmups", "1", "--out", str(out))
    said = torchrun(2, "benchmarks/tp.py", *command).stdout
    assert "ag_gemm:h200" in said
    assert '"ended_early": null' in out.read_text()
