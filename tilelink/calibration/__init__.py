"""Calibration: measure times on the GPUs of a node, and fit a machine to them.

timings = measure(group)                              # on GPU ranks, all of them in lock-step
machine = fit(timings, load_machine("8xH200"), name="mine")
"""

from tilelink.calibration.fit import Timings, fit

__all__ = ["Timings", "fit"]
