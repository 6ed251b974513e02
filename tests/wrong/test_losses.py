"""The randomly composed losses are valid losses: equal numbers eager and traced, finite, with gradients."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wrong.losses import arrays, check, composed, whole


@settings(derandomize=True, max_examples=60, deadline=None, database=None)
@given(composed(), st.integers(1, 9))
def test_composed_losses_are_the_same_traced(loss, rows):
    given_arrays = arrays(rows)
    value, gradients = whole(loss, given_arrays)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in gradients), str(loss)
    check(loss, given_arrays, 1, lambda loss, given, _: whole(loss, given, traced=True))
