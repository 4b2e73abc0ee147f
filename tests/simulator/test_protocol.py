"""The launch protocol in simulated time: kernels that announce a rank's entry need no helper kernel before them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilelink import compiler
from tilelink.artifact import LaunchProtocol
from tilelink.planning.plan import make_plan
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine


def test_a_helper_kernel_before_a_launch_takes_its_time() -> None:
    program = compiler.load("all_reduce").program("all_reduce_two_shot")
    bound = compiler.bound(program, None, ranks=4, dims={"Ms": 64, "N": 64}, target="sm_90")
    assert bound.protocol is LaunchProtocol.IN_KERNEL and any(kernel.needs_entry for kernel in bound.kernels)
    machine = load_machine("8xH200")
    helped = replace(bound, protocol=LaunchProtocol.HELPER_KERNELS)
    own, other = (simulate(make_plan(one), machine).seconds for one in (bound, helped))
    assert other - own == pytest.approx(machine.kernel_gap)
