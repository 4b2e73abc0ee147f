"""A rank of the tests of programs: `torchrun ... -m tests.gpu.worker SCENARIO ...`; exit status 0 if all is well."""

import sys

from tests.gpu import scenarios
from tests.gpu.ranks import run_scenarios

if __name__ == "__main__":
    run_scenarios(vars(scenarios), sys.argv[1:])
