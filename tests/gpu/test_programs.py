"""Every program and schedule of the library on GPUs, in all the ways in which launches may meet."""

import pytest

from tests.gpu.campaign import LIMITS_S
from tests.gpu.ranks import START_S, torchrun

SCENARIOS = [
    pytest.param(name, marks=pytest.mark.timeout(LIMITS_S[name] + 2 * START_S))
    for name in LIMITS_S
    if not name.startswith("ops_")
]


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
