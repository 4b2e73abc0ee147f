"""Columns of plans: rows that are alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilelink.lowering import columns
from tilelink.lowering.columns import distinct_rows

VALUES = st.one_of(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1))


@given(rows=st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), min_size=1, max_size=30)))
@pytest.mark.parametrize("largest", [columns.MAX_KEY, 2**36])
def test_distinct_rows_are_those_of_numpy(rows: list[tuple[int, ...]], largest: int) -> None:
    table = np.array(rows, np.int64)
    wanted, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_KEY", largest)
        found, places = distinct_rows([*table.T])
    assert found.tolist() == first.tolist() and places.tolist() == which.ravel().tolist()
    assert (table[found] == wanted).all()
