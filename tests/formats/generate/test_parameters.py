from __future__ import annotations

import json

import numpy as np
import pytest

from headrace.formats.generate.parameters import Parameters


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": -1}, ValueError, "rows=-1"),
        ({"rows": 1.5}, TypeError, "rows=1.5"),
        ({"rows": True}, TypeError, "rows=True"),
        ({"files": 0}, ValueError, "files=0"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"seed": 2**64}, ValueError, "seed="),
        ({"drift": 1.5}, ValueError, "drift=1.5"),
        ({"drift": float("nan")}, ValueError, "drift=nan"),
        ({"drift": "a"}, TypeError, "drift='a'"),
        ({"drift_rows": 0}, ValueError, "drift_rows=0"),
        ({"compression": "zip"}, ValueError, "compression='zip' is not one of None, 'gzip'"),
        ({"labels": 1}, TypeError, "labels=1"),
        ({"rows_per_block": 0}, ValueError, "rows_per_block=0"),
        ({"rows_per_block": 2**30}, ValueError, "rows_per_block="),
        ({"max_cardinality": 0}, ValueError, "max_cardinality=0"),
        ({"eval_rows": -2}, ValueError, "eval_rows=-2"),
        ({"preset": "avazu"}, ValueError, "preset='avazu'"),
        ({"skew": "none"}, ValueError, "skew='none'"),
        ({"preset": "taobao-userbehavior", "labels": False}, ValueError, "labels=False"),
    ],
)
def test_a_bad_argument_is_named(change, error, message):
    with pytest.raises(error, match=message):
        Parameters(**{"preset": "criteo-kaggle", "rows": 10, **change})


def test_numbers_of_numpy_are_numbers():
    parameters = Parameters(preset="criteo-kaggle", rows=np.int64(10), seed=np.uint64(2**64 - 1))
    assert json.loads(json.dumps(parameters.to_dict()))["seed"] == 2**64 - 1


def test_plain_data_survives_json_and_fills_in_the_day():
    parameters = Parameters(preset="criteo-kaggle", rows=10, drift=0)
    assert json.loads(json.dumps(parameters.to_dict())) == parameters.to_dict()
    assert parameters.to_dict()["drift_rows"] == parameters.day_rows == 6_548_660
    assert parameters.to_dict()["stream_version"] == 1
