from __future__ import annotations

import pytest

from headrace.formats.generate.presets import load_preset, preset_names, skew_names

MISSING = {
    "criteo-kaggle": {
        **{f"I{i}": p for i, p in ((1, 0.452), (2, 0), (3, 0.203), (4, 0.203), (5, 0.05), (6, 0.252), (7, 0.05))},
        **{f"I{i}": p for i, p in ((8, 0.001), (9, 0.05), (10, 0.452), (11, 0.05), (12, 0.777), (13, 0.203))},
        **dict.fromkeys(("C3", "C4", "C12", "C16", "C21", "C24"), 0.033),
        **dict.fromkeys(("C19", "C20", "C25", "C26"), 0.453),
        "C6": 0.131,
        "C22": 0.817,
    },
    "criteo-terabyte": {
        **{f"I{i}": p for i, p in ((1, 0.238), (2, 0.095), (3, 0.273), (4, 0.464), (5, 0.426), (6, 0.081))},
        **{f"I{i}": p for i, p in ((7, 0.037), (8, 0), (9, 0), (10, 0.081), (11, 0.426), (12, 0.013), (13, 0.273))},
        **dict.fromkeys(("C1", "C10", "C11", "C20", "C21", "C22"), 0.035),
        **dict.fromkeys(("C14", "C16", "C17", "C23"), 0.465),
    },
}
# Published cardinalities, the missing token counted in.
KAGGLE_CARDINALITIES = """1460,583,10131227,2202608,305,24,12517,633,3,93145,5683,8351593,3194,27,14992,5461306,10,5652,
2173,4,7046547,18,15,286181,105,142572"""


def test_names():
    assert preset_names() == ("criteo-kaggle", "criteo-terabyte", "taobao-userbehavior")
    assert skew_names("criteo-kaggle") == ("pessimistic", "default", "skewed")
    assert skew_names("criteo-terabyte") == skew_names("taobao-userbehavior") == ("default",)


@pytest.mark.parametrize("name", MISSING)
def test_criteo_columns_and_missing_shares(name):
    preset = load_preset(name)
    assert list(preset.dense) == [f"I{i}" for i in range(1, 14)]
    assert list(preset.sparse) == [f"C{i}" for i in range(1, 27)]
    for column, law in (*preset.dense.items(), *preset.sparse.items()):
        assert law.p_miss == pytest.approx(MISSING[name].get(column, 0.0), abs=1e-3)


def test_kaggle_columns_have_the_published_cardinality():
    published = [int(number) for number in KAGGLE_CARDINALITIES.split(",")]
    for law, cardinality in zip(load_preset("criteo-kaggle").sparse.values(), published, strict=True):
        assert cardinality - (law.p_miss > 0) <= law.cardinality <= cardinality


@pytest.mark.parametrize("name", preset_names())
def test_columns_of_groups_and_pairs_exist_and_groups_agree_on_their_share(name):
    preset = load_preset(name)
    laws = {**preset.dense, **preset.sparse}
    for group in preset.joint_missing:
        assert len({laws[column].p_miss for column in group}) == 1
    grouped = [column for group in preset.joint_missing for column in group]
    assert len(set(grouped)) == len(grouped)
    for pair in preset.label_pairs:
        assert set(pair) <= set(preset.sparse)


def test_only_one_kaggle_column_is_negative():
    lows = {
        name: min([law.low, *(v for v, _ in law.atoms)]) for name, law in load_preset("criteo-kaggle").dense.items()
    }
    assert lows.pop("I2") == -3
    assert min(lows.values()) == 0
    assert min(v for v, _ in load_preset("criteo-terabyte").dense["I8"].atoms) == -1


@pytest.mark.parametrize("name", preset_names())
def test_a_cap_holds_for_every_column(name):
    assert max(law.cardinality for law in load_preset(name, max_cardinality=50).sparse.values()) == 50


def test_unknown_names_are_refused_with_those_that_exist():
    with pytest.raises(ValueError, match="'avazu' is not one of 'criteo-kaggle', 'criteo-terabyte'"):
        load_preset("avazu")
    with pytest.raises(ValueError, match="skew='steep': preset 'criteo-kaggle' has 'pessimistic', 'default', 'skewed'"):
        load_preset("criteo-kaggle", skew="steep")
    with pytest.raises(ValueError, match="max_cardinality=0"):
        load_preset("criteo-kaggle", max_cardinality=0)
