"""Reference interpreter: executes a program without a schedule. Every numerical check compares with it.

`run` runs a program on torch tensors, `random_inputs` makes inputs for it, and `oracle` registers the torch equivalent
of a user's function.
"""

from tilelink.reference.inputs import random_inputs
from tilelink.reference.run import run
from tilelink.reference.values import oracle

__all__ = ["run", "random_inputs", "oracle"]
