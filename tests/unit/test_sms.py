# pyright: basic
"""Operators that leave SMs to others, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.compiler.library import cases, name
from tilelink import compiler, ops
from tilelink.errors import BindingError
from tilelink.ops import calls, groups, sms
from tilelink.target import A100, H200


class Group:
    group_name = "g"

    def size(self) -> int:
        return 2


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(groups, "check_member", lambda group: None)
    monkeypatch.setattr(groups, "is_destroyed", lambda group: False)
    monkeypatch.setattr(sms, "current_target", lambda *_: H200)
    monkeypatch.setattr(sms.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(calls, "nodes_of", lambda group: 1)
    return Group()


def test_kernels_that_are_compiled_from_now_on_take_so_many_sms(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[Any] = []
    monkeypatch.setattr(calls.compiler, "compile", lambda *_, target, **__: targets.append(target))
    program, schedule = next((p, s) for p, s in cases() if s and name((p, s)) == "ag_gemm-h200")
    x, made = torch.zeros(8, 16, dtype=torch.bfloat16), calls._made.of(group)

    def call() -> None:
        calls._kernel(program, schedule, x, {"M": 16, "N": 16, "K": 16}, made)

    for count in (None, 116, 116, None):
        if count != 116 or not targets[1:]:
            ops.use_sms(count, group=group)
        call()
    assert targets == [None, replace(H200, sms=116)], "each kernel is compiled once"
    ops.use_sms(100, group=group)
    ops.clear()
    assert sms.target_of(group) is None


@pytest.mark.parametrize(
    ("processor", "clusters", "left"), [(H200, "", 25), (H200, "1", 1), (H200, "0", 1), (H200, "2", 9), (A100, "", 1)]
)
def test_a_group_that_is_not_all_ranks_leaves_sms_to_collectives(
    processor: Any, clusters: str, left: int, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sms, "current_target", lambda *_: processor)
    monkeypatch.setenv("NCCL_CGA_CLUSTER_SIZE", clusters)
    assert sms.target_of(group) is None, "all ranks"
    monkeypatch.setattr(sms.dist, "get_world_size", lambda: 4)
    assert sms.target_of(group) == replace(processor, sms=processor.sms - left)
    ops.use_sms(100, group=group)
    assert sms.target_of(group) == replace(processor, sms=100), "what is said counts"
    ops.use_sms(None, group=group)
    assert sms.target_of(group) is None
    ops.clear()


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "16"])
def test_what_is_no_number_of_sms_is_refused(count: Any, group: Any) -> None:
    with pytest.raises(BindingError, match="use_sms"):
        ops.use_sms(count, group=group)


def test_more_sms_than_the_gpu_has_are_refused(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ops.use_sms(132, group=group)
    with pytest.raises(BindingError, match="cannot take 133 SMs"):
        ops.use_sms(133, group=group)


@pytest.mark.parametrize("case", ["ag_gemm-h200", "gemm_rs_local_last-h200_copy_sms", "ag_gemm_in_place-h200_roles"])
def test_programs_of_a_rank_fit_the_sms_that_they_are_left(case: str) -> None:
    program, schedule = next(one for one in cases() if name(one) == case)
    given: dict[str, Any] = {"ranks": 2, "dims": {"Ms": 4096, "N": 4096, "K": 512}, "dtype": "bf16"}
    taken: list[int] = []
    for count in (132, 116):
        bound = compiler.bound(program, schedule, target=replace(H200, sms=count), **given)
        taken.append(sum(one.blocks for one in bound.on_sms))
    assert taken == [132, 116]
