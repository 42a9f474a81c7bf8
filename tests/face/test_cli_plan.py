"""`headrace plan`, `headrace stats` and `headrace bench plan`."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.ingest.nodes.plan_window import DEFAULT_CAPACITY_ROWS
from headrace.ranks_trace import indexed_preset


def invoke(*arguments: object):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "d"
    result = invoke("generate", "criteo-kaggle", "--out", folder, "--rows", 1200)
    assert result.exit_code == 0, result.output
    return folder


PLAN = ("--batch-size", 60, "--window", 3, "--capacity", 1500)


def test_plans_are_summed_up_saved_read_proved_and_drawn(data, tmp_path) -> None:
    saved, picture = tmp_path / "a.arrow", tmp_path / "a.png"
    result = invoke("plan", data, *PLAN, "--verify", "--out", saved, "--plot", picture, "--steps", 2, "--json", "-")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert (made["steps"], made["window"], made["violations"]) == (20, 3, 0)
    assert made["requested"] > made["fetched"] > made["evicted"] > 0
    assert [row["step"] for row in made.pop("first_steps")] == [0, 1]
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = invoke("plan", "--read", saved, "--verify", "--json", "-")
    assert json.loads(again.stdout) == made
    table = invoke("plan", "--read", saved, "--steps", 1)
    assert "step 0  requested" in table.stdout


def test_a_saved_file_has_the_columns_that_the_page_names(data, tmp_path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "plans.md").read_text()
    saved = tmp_path / "a.arrow"
    assert invoke("plan", data, *PLAN, "--out", saved).exit_code == 0
    table = pa.ipc.open_file(saved).read_all()
    named = {name.replace("<g>", "0") for name in re.findall(r"`(g<g>\.[a-z_.]+)`", page)}
    assert {"g0.unique", "g0.slots", "g0.late.evict_slots"} <= named <= set(table.column_names)
    assert {b"headrace.plan.window", b"headrace.plan.capacity", b"headrace.plan.digest"} <= set(table.schema.metadata)
    assert len(table["g0.unique"][0].as_py()) == len(table["g0.slots"][0].as_py()) > 0


@pytest.mark.parametrize("command", ["plan", "replay"])
def test_the_help_tells_the_capacity_that_is_taken(command) -> None:
    assert f"[{DEFAULT_CAPACITY_ROWS}]" in invoke(command, "--help").stdout


@pytest.fixture(scope="module")
def two_layouts(data, tmp_path_factory):
    """Arguments that name two columns of the data, each in a row layout of its own."""
    folder = tmp_path_factory.mktemp("two")
    schema = folder / "two.yaml"
    schema.write_text("labels: [label]\nsparse: [C1, C2]\ntables: [{name: C1, dim: 4}, {name: C2, dim: 8}]\n")
    assert invoke("convert", data, "--out", folder / "out").exit_code == 0
    return folder / "out", "--dataset", "parquet", "--schema", schema


def test_what_each_row_layout_has_is_numbers(two_layouts) -> None:
    command = ("plan", *two_layouts, *PLAN, "--hot-rows", 7)
    made = json.loads(invoke(*command, "--json", "-").stdout)
    assert (made["capacity"], made["r_rows"]) == ([1500, 1500], [7, 7])
    assert "capacity            1500, 1500\n" in invoke(*command).stdout


def test_hot_rows_that_are_cut_are_told(data, two_layouts) -> None:
    command = ("plan", data, "--batch-size", 60, "--window", 3, "--json", "-")
    largest = max(row["requested"] for row in json.loads(invoke(*command, "--steps", 20).stdout)["first_steps"])
    cut = invoke(*command, "--capacity", 1500, "--hot-rows", 5000)
    why = f"an arena of 1500 rows has no room for more beside a batch of {largest} unique rows"
    assert json.loads(cut.stdout)["fewer_hot_rows"] == {"asked": 5000, "given": [1500 - largest], "why": [why]}
    assert f"note: --hot-rows 5000: {1500 - largest} rows are pinned: {why}\n" in cut.stderr
    whole = invoke(*command, "--capacity", 1500, "--hot-rows", 1500 - largest)
    assert "fewer_hot_rows" not in json.loads(whole.stdout)
    assert "note" not in whole.stderr
    few = invoke("plan", *two_layouts, "--batch-size", 60, "--window", 3, "--hot-rows", 100)
    assert "note: --hot-rows 100: " in few.stderr
    assert (
        " rows of table 'C1' (dim 4, rowwise_adagrad) are pinned: they are chosen from the first 20 batches"
        in few.stderr
    )
    assert few.stderr.count("note") == 1  # C2 has more rows than that


def test_a_capacity_that_is_too_small_is_told_what_the_whole_stream_needs(data) -> None:
    command = ("plan", data, "--batch-size", 60, "--window", 1, "--hot-rows", 0)
    told = invoke(*command, "--capacity", 5)
    assert told.exit_code == 1
    assert "note: the capacity is too small: reading on" in told.stderr
    found = re.search(
        r"whole stream of 20 steps at least (\d+) are needed, and (\d+) so that no row is late", told.stderr
    )
    assert found is not None, told.stderr
    needed, never_late = map(int, found.groups())
    assert invoke(*command, "--capacity", needed - 1).exit_code == 1
    assert invoke(*command, "--capacity", needed).exit_code == 0
    for capacity, some_late in ((never_late - 1, True), (never_late, False)):
        made = json.loads(invoke(*command, "--capacity", capacity, "--steps", 20, "--json", "-").stdout)
        assert any(row["late"] for row in made["first_steps"][1:]) is some_late


def test_of_several_layouts_each_is_told_what_it_needs(two_layouts) -> None:
    told = invoke("plan", *two_layouts, "--batch-size", 60, "--window", 3, "--capacity", 25).stderr
    found = re.search(
        r"at least (\d+) are needed, and (\d+) so .*; table 'C2' \(dim 8, rowwise_adagrad\): (\d+) and (\d+)\)", told
    )
    assert found is not None, told
    assert found.groups()[:2] == found.groups()[2:]  # C1 has fewer rows
    assert "(table 'C1' (dim 4, rowwise_adagrad): " in told


def test_a_saved_plan_that_is_wrong_ends_with_exit_code_1(data, tmp_path) -> None:
    from dataclasses import replace

    from headrace.ingest.plan.plan_file import load_plans, save_plans

    saved = tmp_path / "a.arrow"
    assert invoke("plan", data, *PLAN, "--out", saved).exit_code == 0
    plans = load_plans(saved)
    wrong = replace(plans.plans[5], groups=(replace(plans.plans[5].groups[0], hits=0),))
    save_plans(saved, replace(plans, plans=(*plans.plans[:5], wrong, *plans.plans[6:])))
    result = invoke("plan", "--read", saved, "--verify", "--json", "-")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["violations"] == 1
    assert "step 5" in json.loads(result.stdout)["first_violations"][0]


def test_diff_names_the_first_step_and_has_exit_code_1(data, tmp_path) -> None:
    a, b = tmp_path / "a.arrow", tmp_path / "b.arrow"
    for path, hot in ((a, 0), (b, 0)):
        assert invoke("plan", data, *PLAN, "--hot-rows", hot, "--out", path).exit_code == 0
    same = invoke("plan", "--diff", a, b)
    assert (same.exit_code, "none" in same.stdout) == (0, True)
    assert invoke("plan", data, "--batch-size", 50, *PLAN[2:], "--hot-rows", 0, "--out", b).exit_code == 0
    other = invoke("plan", "--diff", a, b, "--json", "-")
    assert other.exit_code == 1
    found = json.loads(other.stdout)
    assert (found["equal"], found["difference"]["step"]) == (False, 0)
    assert found["header"] == []
    assert found["difference"]["field"] == "group 0, unique rows"
    assert invoke("plan", data, *PLAN[:2], "--window", 4, *PLAN[4:], "--hot-rows", 0, "--out", b).exit_code == 0
    other = invoke("plan", "--diff", a, b)
    assert other.exit_code == 1
    assert "window: 3 and 4\n" in other.stdout
    assert "step 1: group 0, ahead.evict_locations: entry" in other.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan"], "one of them"),
        (["plan", "{data}", "--read", __file__], "one of them"),
        (["plan", "--read", "{data}/../none.arrow"], "none.arrow"),
        (["plan", "{data}", "--capacity", "5"], "are needed"),
        (["stats", "{data}", "--c-early", "5"], "cannot cost less"),
        (["bench", "plan", "--capacity-share", "0"], "capacity-share"),
    ],
)
def test_errors_say_what_is_wrong(data, arguments, message) -> None:
    result = invoke(*(a.format(data=data) for a in arguments))
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_stats_reports_the_curve_and_its_optimum(data, tmp_path) -> None:
    options = ("--batch-size", 60, "--batches", 15, "--world-size", 4, "--c-ar", 1.5, "--plot", tmp_path / "c.png")
    result = invoke("stats", data, *options, "--json", "-")
    assert result.exit_code == 0, result.output
    stats = json.loads(result.stdout)
    assert (stats["batches"], stats["world_size"], stats["c_ar"]) == (15, 4, 1.5)
    assert stats["cost"] == min(cost for _, cost in stats["curve"])
    assert 0 < stats["r_rows"] < stats["rows"]
    assert stats["band_low"] <= stats["r_rows"] <= stats["band_high"]
    assert 0 < stats["covered_unique_rows"] < stats["covered_accesses"] < 1
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_measured_costs_are_in_nanoseconds_and_not_mixed_with_given_ones(data) -> None:
    measured = invoke("stats", data, "--batch-size", 60, "--world-size", 4, "--calibrate", "--json", "-")
    assert measured.exit_code == 0, measured.output
    stats = json.loads(measured.stdout)
    assert stats["cost_unit"] == "ns"
    assert 0.1 < stats["c_ar"] < 1e5  # a row of 68 bytes: seconds would be 1e-9 times that
    mixed = invoke("stats", data, "--batch-size", 60, "--calibrate", "--c-late", 3)
    assert mixed.exit_code == 2
    assert "--c-late: in a unit of its own" in mixed.output


def test_each_row_layout_has_a_curve(data, two_layouts, tmp_path) -> None:
    picture = tmp_path / "c.png"
    options = ("--batch-size", 60, "--batches", 15, "--world-size", 4, "--top-rows", 9, "--plot", picture)
    result = invoke("stats", *two_layouts, *options, "--no-features", "--json", "-")
    assert result.exit_code == 0, result.output
    layouts = json.loads(result.stdout)["layouts"]
    assert [(one["tables"], one["dim"], one["optimizer"]) for one in layouts] == [
        (["C1"], 4, "rowwise_adagrad"),
        (["C2"], 8, "rowwise_adagrad"),
    ]
    one_layout = json.loads(invoke("stats", data, *options, "--no-features", "--json", "-").stdout)
    for layout in layouts:
        assert layout.keys() - {"tables", "dim", "optimizer"} == one_layout.keys()
        assert layout["cost"] == min(cost for _, cost in layout["curve"])
        assert layout["coverage"][0]["held_out_accesses"] > 0  # 5 batches are left
    alone = two_layouts[-1].with_name("one.yaml")
    alone.write_text("labels: [label]\nsparse: [C2]\n")
    second = json.loads(invoke("stats", *two_layouts[:-1], alone, *options, "--no-features", "--json", "-").stdout)
    assert second.items() <= layouts[1].items()
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = invoke("stats", *two_layouts, *options, "--calibrate").stdout
    assert "layout 1.tables" in table
    assert "layout 2.r_rows" in table


def test_a_single_rank_is_told_that_r_is_for_several(data) -> None:
    assert "note: one rank has nobody" in invoke("stats", data, "--batch-size", 60).output
    assert "note: one rank" not in invoke("stats", data, "--batch-size", 60, "--world-size", 2).output


def test_bench_plan_names_its_option_when_the_arena_is_too_small() -> None:
    result = invoke("bench", "plan", "--batch-size", 64, "--window", 2, "--steps", 3, "--warm-up", 1,
                    "--capacity-share", 0.01)  # fmt: skip
    assert result.exit_code == 1
    assert "--capacity-share 0.01 is too small: step 0: the arena has" in result.output


def test_any_dataset_is_planned(tmp_path) -> None:
    log = tmp_path / "UserBehavior.csv"
    log.write_text("".join(f"{u},{u % 7},{u % 3},pv,{1511544070 + u}\n" for u in range(40)))
    found = invoke("plan", log, "--dataset", "taobao-userbehavior", "--batch-size", 10, "--window", 2, "--json", "-")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["steps"] == 4


def test_bench_plan_over_an_older_index_plans_the_batches_after_its_history() -> None:
    history, window, steps = 20, 5, 6
    small = ("--batch-size", 64, "--window", window, "--steps", steps, "--warm-up", 0, "--capacity-share", 0.9)
    result = invoke("bench", "plan", *small, "--no-numpy", "--history", history, "--json", "-")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    stream = indexed_preset("criteo-kaggle", batch_size=64, num_batches=history + window, num_workers=1, seed=0)
    rows = set()
    for locations, _ in islice(stream, history, None):
        rows.update(locations.tolist())
    assert (report["history"], report["steps"], report["window_distinct_rows"]) == (history, steps, len(rows))
    assert report["rows_in_eight"] == len(rows) / len({row // 8 for row in rows})


def test_bench_plan_writes_stable_keys() -> None:
    result = invoke("bench", "plan", "--batch-size", 64, "--window", 5, "--steps", 6, "--warm-up", 4,
                    "--capacity-share", 0.9, "--curve", "--json", "-")  # fmt: skip
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    keys = {
        "plan_ms",
        "numpy_ms",
        "hit_rate",
        "early_share",
        "peak_rows",
        "planner_bytes",
        "belady_gap",
        "overlap_cost",
    }
    assert keys <= set(report)
    assert len(report["curve"]) == 6
