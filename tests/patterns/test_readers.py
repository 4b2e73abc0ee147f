"""Programs that readers wrote from one line of descriptions.txt each, with the language page alone, attempt by attempt.

readers/PROGRAM has the attempts of one reader and what the commands answered. Three readers who had not seen the
package wrote four programs each; the last attempt is the one that was accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from torch import Tensor

import tilelink
from tests.patterns.truth import SCALE, TRUTHS
from tilelink.errors import TileLinkError
from tilelink.reference.trial import random_inputs

READERS = Path(__file__).with_name("readers")
SAID = 1.5
"""Attempts that a program may take a reader, on the average."""


def heads_outside(keys: Tensor) -> Tensor:
    """Pages [P, T, H, D] of pages [P, H, T, D]."""
    return keys.transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A reader's program beside the pattern that it is: its sizes, and the pattern's names for its tensors.

    places: an output of places whose order the description leaves open: those of each expert are compared.
    """

    pattern: str
    dims: dict[str, int | float]
    names: dict[str, str] = field(default_factory=dict[str, str])
    layouts: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict[str, Callable[[Tensor], Tensor]])
    places: str = ""


WRITTEN = {
    "gather_product": Written(pattern="ag_gemm", dims={"Ms": 20, "N": 24, "K": 16}),
    "product_reduce_scatter": Written(pattern="gemm_rs_local_last", dims={"Ms": 20, "N": 24, "K": 16}),
    "product_all_reduce": Written(pattern="gemm_ar_one_shot", dims={"M": 20, "N": 24, "Ks": 16}),
    "gather_moe": Written(pattern="grouped_gemm", dims={"Ms": 12, "K": 16, "N": 24, "E": 3, "T": 30}),
    "moe_reduce_scatter": Written(
        pattern="moe_reduce_scatter",
        dims={"Ms": 10, "k": 2, "E": 3, "C": 16, "F": 12, "N": 20},
        names={"w": "down", "owner": "expert"},
    ),
    "expert_layer": Written(pattern="expert_parallel", dims={"M": 10, "D": 12, "C": 8, "K": 2}),
    "ring_attention": Written(pattern="ring_attention", dims={"H": 2, "Ms": 16, "D": 16, "scale": SCALE}),
    "zigzag_attention": Written(pattern="zigzag_attention", dims={"H": 2, "C": 16, "D": 16, "scale": SCALE}),
    "ulysses": Written(pattern="ulysses", dims={"H": 2, "Ms": 16, "D": 16, "scale": SCALE}),
    "paged_decoding": Written(
        pattern="paged_decode",
        dims={"B": 3, "P": 7, "T": 16, "H": 2, "G": 16, "D": 16, "L": 4, "scale": SCALE},
        names={"k": "keys", "v": "vals", "o": "y"},
        layouts={"k": heads_outside, "v": heads_outside},
    ),
    "fsdp": Written(pattern="fsdp", dims={"L": 3, "M": 12, "Ns": 8}),
    "top_k_gate": Written(
        pattern="top_k_gate",
        dims={"M": 12, "E": 6, "k": 2},
        names={"s": "scores", "value": "score", "place": "slot"},
        places="slot",
    ),
}


def attempts(name: str) -> list[Path]:
    return sorted((READERS / name).glob("attempt*.tl"))


def test_readers_write_what_they_are_asked_for_nearly_at_once() -> None:
    assert {path.name for path in READERS.iterdir()} == set(WRITTEN) and len(WRITTEN) >= 12
    assert sum(len(attempts(name)) for name in WRITTEN) / len(WRITTEN) <= SAID


@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_reader_wrote_computes_what_plain_torch_does(name: str) -> None:
    written, truth = WRITTEN[name], TRUTHS[WRITTEN[name].pattern]
    module = tilelink.load(str(attempts(name)[-1]))
    program = module.program()
    kernel = tilelink.compile(program, ranks=truth.ranks, dims=written.dims)
    (inputs,) = random_inputs(program, ranks=truth.ranks, dims=written.dims, dtype="f32", launches=1, seed=1)
    truth.given(inputs)
    outputs = kernel(inputs)
    renamed = [
        {written.names.get(key, key): written.layouts.get(key, Tensor.clone)(x) for key, x in one.items()}
        for one in inputs
    ]
    for rank, tensors in enumerate(truth.outputs(renamed)):
        made = {written.names.get(key, key): x for key, x in outputs[rank].items()}
        assert set(made) == set(tensors)
        for key, right in tensors.items():
            there = made[key][: len(right)]  # rows beyond are not defined
            assert there.shape == right.shape
            if key == written.places:
                experts = tensors["expert"].flatten().tolist()
                assert sorted(zip(experts, there.flatten().tolist(), strict=True)) == sorted(
                    zip(experts, right.flatten().tolist(), strict=True)
                )
                continue
            difference = (there.double() - right.double()).abs().max()
            assert difference <= truth.error * right.double().abs().max(), (rank, key)


SINCE = {"moe_reduce_scatter"}
"""Of whom what they wrote first is accepted by now: rows of segments may be read by place."""
BEFORE = [path for name in WRITTEN for path in attempts(name)[:-1]]


@pytest.mark.parametrize("path", BEFORE, ids=lambda path: path.parent.name)
def test_what_a_reader_wrote_before_is_refused_with_a_hint_unless_it_is_accepted_by_now(path: Path) -> None:
    program = tilelink.load(str(path)).program()
    dims = {one.name: one.example for one in program.params if one.example is not None}
    if path.parent.name in SINCE:
        tilelink.plan(program, ranks=2, dims=dims)
        return
    with pytest.raises(TileLinkError) as caught:
        tilelink.plan(program, ranks=2, dims=dims)
    assert caught.value.hint
