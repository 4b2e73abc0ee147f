"""Tuning: find the schedule of a program for given sizes and a machine. The model ranks; the GPUs measure the best few.

found = rank([program], dims=..., ranks=8, machine=load_machine("8xH200"), budget_s=30)
prepare_shares([Point(...)], group, seconds=30)       # on GPU ranks: all cores compile ahead
measured = measure(distinct(found, 8), ...)           # all ranks in lock-step
Database().store(Record(...))
"""

from tilelink.tuning.database import Database, Key, Record, here, key_of
from tilelink.tuning.distinct import distinct, kernels_of
from tilelink.tuning.rank import algorithms, rank

__all__ = ["Database", "Key", "Record", "algorithms", "distinct", "here", "kernels_of", "key_of", "rank"]
