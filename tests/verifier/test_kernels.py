"""Facts of kernels that the plan does not show: flattened loops, the order of issue, the handshake, and barriers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lowered import parse_lowered
from tilelink import compiler
from tilelink.artifact import LaunchProtocol
from tilelink.compiler import source_of
from tilelink.errors import EmitError, TilesError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.verifier import verify

HANDED_ON = """program handed_on(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    h : symmetric [M, K]
    y : symmetric [M, N]
    z : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        consumer_tile_wait(h[i, :])
        tile_push_data(y[i, j] @ (rank + 1), dot(h[i, :], w[j, :].T))
        producer_tile_notify(y[i, j] @ (rank + 1))

    compute keep(i: M, j: N):
        consumer_tile_wait(y[i, j])
        z[i, j] = y[i, j]

schedule s for handed_on:
    send on sm(2), tile(i=32)
    gemm on sm, tile(i=32, j=32, k=32)
    keep on sm, tile(i=32, j=32)
"""


def lowered(target: str = "sm_90") -> Bound:
    program = compiler.parse(HANDED_ON).programs[0]
    sizes = {"M": 8192, "N": 512, "K": 64}
    return compiler.plan(program, "s", ranks=2, dims=sizes, dtype="bf16", target=target).bound


def refused(bound: Bound, match: str) -> None:
    """The rule refuses a program and its text that is read back."""
    for one in (bound, parse_lowered(listing(bound))):
        with pytest.raises(TilesError, match=match):
            verify(make_plan(one))


def test_a_loop_that_would_wait_before_it_notifies_is_not_flattened() -> None:
    """The next tile's wait would come before the notify that a peer may need to send what is waited for."""
    bound = lowered()
    verify(make_plan(bound))
    stage = replace(bound.stages["gemm"], flatten=True)
    changed = replace(bound, stages={**bound.stages, "gemm": stage})
    refused(changed, "gemm: a flattened loop begins the next tile early, and it waits before its product and notifies")


def test_kernels_of_a_stream_are_issued_in_its_order() -> None:
    bound = lowered()
    first, second = (kernel for kernel in bound.kernels if kernel.stream == "main")
    assert first.position < second.position and first.issue_index < second.issue_index
    turned = {first.name: second.issue_index, second.name: first.issue_index}
    kernels = tuple(replace(k, issue_index=turned.get(k.name, k.issue_index)) for k in bound.kernels)
    refused(replace(bound, kernels=kernels), f"{first.name} is issued after a kernel that follows it")


@pytest.mark.parametrize("protocol", LaunchProtocol)
def test_a_handshake_is_the_one_of_the_program_or_that_of_all_programs(protocol: LaunchProtocol) -> None:
    bound = lowered()
    changed = replace(bound, protocol=protocol)
    if protocol in (bound.protocol, LaunchProtocol.HELPER_KERNELS):
        verify(make_plan(changed))
        return
    with pytest.raises(TilesError, match=f"its launches take the handshake {protocol.name}, which is not that"):
        verify(make_plan(changed))


def test_what_was_proved_for_one_thread_is_not_emitted() -> None:
    bound = replace(lowered(), many_threads=False, protocol=LaunchProtocol.HELPER_KERNELS)
    plan = make_plan(bound)
    verify(plan)
    with pytest.raises(EmitError, match="its programs have no barriers between their threads yet"):
        source_of(plan)
