"""Presets: the fitted parameters of a dataset, read from `presets.json`, as laws of its columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from headrace.formats.checks import check_text
from headrace.formats.generate.dense import DenseLaw
from headrace.formats.generate.popularity import Law, pmf_law, zipf_mandelbrot_law


@dataclass(frozen=True)
class Preset:
    """Everything that a stream is drawn from.

    layout: "criteo" (tab, hexadecimal ids) or "taobao" (comma, decimal ids).
    file_names: pattern by use: "train", "unlabelled" (None: the format needs labels), "eval"; ``{}`` is a number.
    click_rate, generator_auc: what the label model is calibrated to.
    rows_per_day: rows between two re-rankings by drift, as in the original.
    joint_missing: groups of column names, dense or sparse, that are missing in the same rows.
    label_pairs: pairs of sparse columns that interact in the label model.
    """

    name: str
    layout: str
    file_names: Mapping[str, str | None]
    click_rate: float
    generator_auc: float
    rows_per_day: int
    dense: Mapping[str, DenseLaw]
    sparse: Mapping[str, Law]
    joint_missing: tuple[tuple[str, ...], ...]
    label_pairs: tuple[tuple[str, str], ...]


@cache
def _document() -> dict[str, Any]:
    text = resources.files("headrace.formats.generate").joinpath("presets.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document


def preset_names() -> tuple[str, ...]:
    """Names that :func:`load_preset` knows."""
    return tuple(_document()["presets"])


def skew_names(preset: str) -> tuple[str, ...]:
    """Skews of a preset, from flat to steep."""
    return tuple(_entry(preset)["skews"])


def load_preset(preset: str, *, skew: str = "default", max_cardinality: int | None = None) -> Preset:
    """The laws of `preset` with the exponent shift of `skew`, every column capped at `max_cardinality` ids.

    Raises ValueError for a name that does not exist; the message lists those that do.
    """
    entry = _entry(preset)
    if check_text("skew", skew) not in entry["skews"]:
        raise ValueError(f"skew={skew!r}: preset {preset!r} has {', '.join(map(repr, entry['skews']))}")
    if max_cardinality is not None and max_cardinality < 1:
        raise ValueError(f"max_cardinality={max_cardinality} is not >= 1")
    shift = entry["skews"][skew]
    return Preset(
        name=preset,
        layout=entry["layout"],
        file_names=entry["file_names"],
        click_rate=entry["click_rate"],
        generator_auc=entry["generator_auc"],
        rows_per_day=entry["rows_per_day"],
        dense={name: _dense_law(p) for name, p in entry["dense"].items()},
        sparse={name: _law(p, shift, max_cardinality) for name, p in entry["sparse"].items()},
        joint_missing=tuple(map(tuple, entry["joint_missing"])),
        label_pairs=tuple((a, b) for a, b in entry["label_pairs"]),
    )


def _entry(preset: str) -> dict[str, Any]:
    presets: dict[str, dict[str, Any]] = _document()["presets"]
    if check_text("preset", preset) not in presets:
        raise ValueError(f"preset={preset!r} is not one of {', '.join(map(repr, presets))}")
    return presets[preset]


def _dense_law(parameters: Mapping[str, Any]) -> DenseLaw:
    atoms = tuple((int(value), float(p)) for value, p in parameters["atoms"])
    return DenseLaw(**{**parameters, "atoms": atoms})


def _law(parameters: Mapping[str, Any], shift: float, max_cardinality: int | None) -> Law:
    p_miss = parameters["p_miss"]
    if "pmf" in parameters:
        return pmf_law(np.array(parameters["pmf"]), p_miss=p_miss, max_cardinality=max_cardinality)
    return zipf_mandelbrot_law(
        cardinality=parameters["C"],
        exponent=parameters["s"] + shift,
        shift=parameters["q"],
        p_head=parameters["p_head"],
        p_miss=p_miss,
        max_cardinality=max_cardinality,
    )
