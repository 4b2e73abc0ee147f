"""Every program and schedule of the library on GPUs, in all the ways in which launches may meet."""

import pytest

from tests.gpu.ranks import torchrun

SCENARIOS = ("programs", "skew", "streams", "graphs", "deadlines", "different_programs", "timelines")


@pytest.mark.gpus2
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_two_gpus(scenario: str) -> None:
    torchrun(2, "-m", "tests.gpu.worker", scenario)


@pytest.mark.gpus4
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_four_gpus(scenario: str) -> None:
    torchrun(4, "-m", "tests.gpu.worker", scenario)


@pytest.mark.gpus8
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_on_eight_gpus(scenario: str) -> None:
    torchrun(8, "-m", "tests.gpu.worker", scenario)
