"""The meaning of a program without any schedule: the oracle of every numerical check.

`run` runs a program on torch tensors, `random_inputs` makes inputs for it, `oracle` says what a user's function means.
"""

from tilelink.reference.inputs import random_inputs
from tilelink.reference.run import run
from tilelink.reference.values import oracle

__all__ = ["run", "random_inputs", "oracle"]
