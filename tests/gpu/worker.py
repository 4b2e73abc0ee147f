"""A rank of the tests on GPUs: `torchrun ... -m tests.gpu.worker NAME ...`; exit status 0 if all is well.

`python -m tests.gpu.worker --list` names the scenarios, and how many seconds each may take.
"""

import sys

from tests.gpu import (
    callers,
    ends,
    interleavings,
    launches,
    ops_attention,
    ops_callers,
    ops_experts,
    ops_scenarios,
    ops_styles,
    remote,
    scenarios,
)  # fmt: skip
from tests.gpu.campaign import LIMITS_S, limit_of
from tests.gpu.ranks import run_scenarios


def functions() -> dict[str, object]:
    """All that scenarios may be, by their names."""
    modules = ops_styles, ops_scenarios, ops_callers, ops_experts, ops_attention
    of_operators = {name: value for module in modules for name, value in vars(module).items()}
    named = {f"ops_{name}": value for name, value in of_operators.items()}
    graphs = vars(interleavings) | vars(ends)
    return graphs | vars(callers) | vars(scenarios) | vars(remote) | vars(launches) | named


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("".join(f"{name:24} {limit:4} s\n" for name, limit in LIMITS_S.items()), end="")
    else:
        known = functions()
        run_scenarios(known, sys.argv[1:], sum(limit_of(name) for name in sys.argv[1:]))
