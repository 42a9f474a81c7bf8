from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from headrace.formats.generate import blocks
from headrace.formats.generate.features import FeatureStream
from headrace.formats.generate.generate import generate
from headrace.formats.generate.labels import build_label_model
from headrace.formats.generate.presets import load_preset

SMALL = {"rows": 1000, "rows_per_block": 300, "max_cardinality": 5000}


def content(folder: Path, names) -> bytes:
    return b"".join(
        gzip.decompress((folder / n).read_bytes()) if n.endswith(".gz") else (folder / n).read_bytes() for n in names
    )


def text(tmp_path: Path, preset: str = "criteo-kaggle", **options) -> bytes:
    folder = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    return content(folder, generate(preset, folder, **{**SMALL, **options}).files)


# Guards the stream: when one of these fails on purpose, raise STREAM_VERSION.
FIRST_LINES = {
    "criteo-kaggle": (
        b"1\t\t-1\t7\t1\t1010\t\t2\t46\t0\t\t1\t2\t38\t"
        b"4846abb7\t31e7ded5\t371f5072\t9c78a8c9\t495625cf\tace95f76\t8958c122\t7484d06c\ta18b8325\tc7d62574\t"
        b"a2851c48\t5d39f352\t68585be8\t41a5ed1d\t31acbcdc\t05e0a968\t75234ef5\t549ce717\t\t\t"
        b"085c0c06\t47379605\t2f1c3c6c\tf15f38bd\t\t\n"
    ),
    "criteo-terabyte": (
        b"0\t2\t60\t12\t\t\t9\t0\t266\t3\t0\t\t123\t12\t"
        b"4846abb7\t15c2e943\t846981fe\t600fa479\t29885dc4\tace95f76\t4bfd7337\t981e2d37\t41451822\t518c24e7\t"
        b"07317762\tccbf537d\t0279348d\t\t866de96f\t\t\t549ce717\tb59e9bc6\t00128b2f\t"
        b"93b6e914\t5e0ae313\t\tea7f10c4\t1439c701\tc1d5175e\n"
    ),
    "taobao-userbehavior": b"435453,948448,16307,fav,1511539200\n",
}


@pytest.mark.parametrize("preset", FIRST_LINES)
def test_the_first_line_of_seed_1_is_pinned(tmp_path, preset):
    options = {"rows": 1, "seed": 1, "rows_per_block": 65_536, "max_cardinality": None}
    assert text(tmp_path, preset, **options) == FIRST_LINES[preset]


def test_equal_seeds_give_equal_bytes_and_others_do_not(tmp_path):
    first = text(tmp_path, seed=5)
    assert text(tmp_path, seed=5) == first
    assert text(tmp_path, seed=6) != first
    assert text(tmp_path, seed=5, skew="skewed") != first


@pytest.mark.parametrize("preset", FIRST_LINES)
@pytest.mark.parametrize(
    "options", [{"files": 3}, {"files": 7, "threads": 3}, {"threads": 2}, {"compression": "gzip", "files": 2}]
)
def test_rows_do_not_depend_on_files_threads_or_compression(tmp_path, preset, options):
    assert text(tmp_path, preset, **options) == text(tmp_path, preset)


@pytest.mark.parametrize("rows", [0, 1, 299, 300, 301])
def test_fewer_rows_are_a_prefix(tmp_path, rows):
    whole = text(tmp_path).splitlines()
    assert text(tmp_path, rows=rows, files=2).splitlines() == whole[:rows]


def test_compressed_files_are_the_same_with_any_number_of_threads(tmp_path):
    for threads in (1, 3):
        generate("criteo-kaggle", tmp_path / str(threads), compression="gzip", files=2, threads=threads, **SMALL)
    names = ["manifest.json", "train_0.txt.gz", "train_1.txt.gz"]
    assert [(tmp_path / "1" / n).read_bytes() for n in names] == [(tmp_path / "3" / n).read_bytes() for n in names]


def test_the_text_parses_back_to_the_arrays_drawn(tmp_path):
    lines = text(tmp_path, seed=3).decode().split("\n")
    assert lines.pop() == ""
    preset = load_preset("criteo-kaggle", max_cardinality=5000)
    stream = FeatureStream(preset, 3, 300, 0.0, preset.rows_per_day)
    model = build_label_model(stream)
    for row, line in enumerate(lines):
        block = stream.block(row // 300)
        r = row % 300
        fields = line.split("\t")
        assert len(fields) == 40
        if r == 0:
            labels = model.draw(model.log_odds(block), row // 300)
        if r % 50 == 0:
            assert int(fields[0]) == labels[r]
            for field, value, ok in zip(fields[1:14], block.dense[:, r], block.dense_valid[:, r], strict=True):
                assert field == (str(value) if ok else "")
            for field, value, ok in zip(fields[14:], block.ids[:, r], block.ids_valid[:, r], strict=True):
                assert (int(field, 16) if field else None) == (value if ok else None)
                assert field == field.lower()
                assert len(field) in (0, 8)


def test_taobao_rows_have_five_plausible_fields(tmp_path):
    rows = [line.split(",") for line in text(tmp_path, "taobao-userbehavior", drift_rows=400).decode().splitlines()]
    assert {len(row) for row in rows} == {5}
    assert {row[3] for row in rows} == {"pv", "cart", "fav", "buy"}
    assert [int(rows[i][4]) - 1_511_539_200 for i in (0, 400, 800)] == [0, 86_400, 172_800]
    assert min(int(field) for row in rows for field in row[:3]) >= 1


def test_labels_can_be_left_out_without_changing_the_features(tmp_path):
    folder = tmp_path / "plain"
    report = generate("criteo-kaggle", folder, labels=False, **SMALL)
    assert report.files == ("test_0.txt",)
    assert (report.click_rate, report.auc_of_generator) == (None, None)
    with_labels = text(tmp_path).splitlines()
    assert content(folder, report.files).splitlines() == [line.split(b"\t", 1)[1] for line in with_labels]


def test_drift_changes_later_days_only(tmp_path):
    still = text(tmp_path, drift_rows=500).splitlines()
    moving = text(tmp_path, drift_rows=500, drift=0.4).splitlines()
    assert moving[:500] == still[:500]
    assert sum(a != b for a, b in zip(moving[500:], still[500:], strict=True)) > 450


def test_the_report_and_the_manifest_say_what_is_there(tmp_path):
    report = generate("criteo-terabyte", tmp_path, files=2, **{**SMALL, "rows": 5000, "rows_per_block": 2048})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest) == {"version", "files", "parameters", "results"}
    assert list(manifest["files"]) == ["day_0", "day_1"] == list(report.files)
    for name, entry in manifest["files"].items():
        data = (tmp_path / name).read_bytes()
        assert entry["bytes"] == len(data)
        assert entry["rows"] == data.count(b"\n") == 2500
        assert entry["blake2b"] == hashlib.blake2b(data, digest_size=32).hexdigest()
    assert (report.rows, report.bytes) == (5000, sum(e["bytes"] for e in manifest["files"].values()))
    clicks = [line[:1] == b"1" for line in content(tmp_path, report.files).splitlines()]
    assert report.click_rate == manifest["results"]["click_rate"] == np.mean(clicks)
    assert report.auc_of_generator == manifest["results"]["auc_of_generator"]
    assert 0.7 < report.auc_of_generator < 0.9
    assert report.parameters == manifest["parameters"]
    assert json.loads(json.dumps(report.to_dict()))["rows"] == 5000
    assert report.seconds > 0


def test_evaluation_rows_continue_the_stream_at_the_next_block(tmp_path):
    report = generate("criteo-kaggle", tmp_path / "a", eval_rows=250, **SMALL)
    assert report.eval is not None
    assert (report.eval.files, report.eval.rows) == (("eval_0.txt",), 250)
    longer = text(tmp_path, rows=1500).splitlines()  # 1000 rows fill blocks 0 to 3; block 4 begins at row 1200
    assert content(tmp_path / "a/eval", report.eval.files).splitlines() == longer[1200:1450]
    assert content(tmp_path / "a", report.files).splitlines() == longer[:1000]
    manifest = json.loads((tmp_path / "a/eval/manifest.json").read_text())
    assert list(manifest["files"]) == ["eval_0.txt"]
    assert manifest["results"]["auc_of_generator"] == report.eval.auc_of_generator != report.auc_of_generator


def test_a_second_run_with_equal_parameters_does_nothing(tmp_path):
    options = {"eval_rows": 100, "files": 2, **SMALL}
    first = generate("criteo-kaggle", tmp_path, **options)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    again = generate("criteo-kaggle", tmp_path, threads=2, **options)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert (first.reused, again.reused) == (False, True)
    plain = [{**r.to_dict(), "seconds": 0, "reused": 0} for r in (first, again)]
    plain[0]["eval"]["seconds"] = plain[1]["eval"]["seconds"] = 0
    assert plain[0] == plain[1]


@pytest.mark.parametrize("change", [{"seed": 1}, {"rows": 999}, {"eval_rows": 10}])
def test_other_parameters_are_refused_unless_overwriting(tmp_path, change):
    generate("criteo-kaggle", tmp_path, files=3, **SMALL)
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(FileExistsError, match=r"overwrite=True \(--overwrite\)"):
        generate("criteo-kaggle", tmp_path, **{**SMALL, **change})
    report = generate("criteo-kaggle", tmp_path, overwrite=True, **{**SMALL, **change})
    expected = {"mine.txt", "manifest.json", *report.files, *(["eval"] if "eval_rows" in change else [])}
    assert {p.name for p in tmp_path.iterdir()} == expected
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_overwriting_without_evaluation_rows_removes_those_of_before(tmp_path):
    generate("criteo-kaggle", tmp_path, eval_rows=10, **SMALL)
    generate("criteo-kaggle", tmp_path, overwrite=True, **SMALL)
    assert {p.name for p in tmp_path.iterdir()} == {"manifest.json", "train_0.txt"}
    assert generate("criteo-kaggle", tmp_path, **SMALL).reused


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "day_0").write_text("not ours")
    with pytest.raises(FileExistsError, match="'day_0'"):
        generate("criteo-terabyte", tmp_path, **SMALL)
    assert (tmp_path / "day_0").read_text() == "not ours"


@pytest.mark.parametrize("part", ["", "eval"])
def test_a_folder_of_other_data_is_not_written_into(tmp_path, part):
    """With a manifest beside them, its files could not be read as a folder any more."""
    folder = tmp_path / part
    folder.mkdir(exist_ok=True)
    (folder / "clicks.tsv").write_text("not ours")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError) as caught:
            generate("criteo-kaggle", tmp_path, overwrite=overwrite, eval_rows=10, **SMALL)
        if overwrite or not part:
            assert "holds 'clicks.tsv', which generate did not write" in str(caught.value)
            assert "overwrite" not in str(caught.value)
    assert files_in(folder) == {"clicks.tsv": b"not ours"}
    (folder / "clicks.tsv").rename(folder / ".clicks.tsv")  # no reader of a folder takes it
    generate("criteo-kaggle", tmp_path, overwrite=True, eval_rows=10, **SMALL)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupted_run_leaves_no_file_and_no_manifest(tmp_path, monkeypatch, threads):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blocks, "format_criteo", fail)
    with pytest.raises(OSError, match="No space left"):
        generate("criteo-kaggle", tmp_path, threads=threads, **SMALL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("threads", [0, 1000, True, "2"])
def test_bad_threads_are_refused(tmp_path, threads):
    with pytest.raises(ValueError if type(threads) is int else TypeError, match="threads="):
        generate("criteo-kaggle", tmp_path / "x", threads=threads, **SMALL)
    assert not (tmp_path / "x").exists()


def test_nothing_is_written_for_a_bad_argument(tmp_path):
    with pytest.raises(ValueError, match="rows=-1"):
        generate("criteo-kaggle", tmp_path / "x", rows=-1)
    assert not (tmp_path / "x").exists()


def test_no_rows_give_empty_files(tmp_path):
    for compression in (None, "gzip"):
        report = generate("criteo-kaggle", tmp_path / str(compression), rows=0, files=2, compression=compression)
        assert (report.rows, report.click_rate, report.auc_of_generator) == (0, None, None)
        assert content(tmp_path / str(compression), report.files) == b""


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(NotADirectoryError):
        generate("criteo-kaggle", tmp_path / "x", **SMALL)


def files_in(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("part", ["", "eval"])
@pytest.mark.parametrize("kind", ["other program", "unsound"])
def test_overwriting_touches_nothing_under_a_manifest_of_others(tmp_path, part, kind):
    generate("criteo-kaggle", tmp_path, eval_rows=10, **SMALL)
    manifest = tmp_path / part / "manifest.json"
    content = json.loads(manifest.read_text())
    content["parameters"] = {"preset": "x"} if kind == "other program" else []
    manifest.write_text(json.dumps(content))
    before = files_in(tmp_path)
    with pytest.raises(FileExistsError, match=r"its manifest\.json was not written by generate"):
        generate("criteo-kaggle", tmp_path, overwrite=True, eval_rows=10, **SMALL)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("name", ["train_1.txt", "day_0", "day_23.gz", "eval/eval_7.txt", "UserBehavior_3.csv"])
@pytest.mark.parametrize("complete", [True, False])
def test_files_named_like_generated_ones_are_neither_removed_nor_mixed_in(tmp_path, name, complete):
    """They may be the original data, or left by a run that was killed before it wrote its manifest."""
    if complete:
        generate("criteo-kaggle", tmp_path, eval_rows=10, **SMALL)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"mine")
    before = files_in(tmp_path)
    with pytest.raises(FileExistsError, match=f"'{Path(name).name}', which no manifest of generate lists"):
        generate("criteo-kaggle", tmp_path, overwrite=True, **SMALL)
    assert files_in(tmp_path) == before


def test_a_run_killed_before_its_manifest_is_recognised(tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.formats.generate.generate.write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        generate("criteo-kaggle", tmp_path, files=2, **SMALL)
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"'train_0\.txt', which no manifest.*interrupted run.*remove it"):
            generate("criteo-kaggle", tmp_path, overwrite=overwrite, **SMALL)


def test_a_run_interrupted_behind_the_evaluation_part_says_how_to_go_on(tmp_path):
    generate("criteo-kaggle", tmp_path, eval_rows=10, **SMALL)
    for path in tmp_path.glob("*.*"):
        path.unlink()
    with pytest.raises(FileExistsError, match=r"'eval', as an interrupted run leaves it.*overwrite=True"):
        generate("criteo-kaggle", tmp_path, eval_rows=10, **SMALL)
    generate("criteo-kaggle", tmp_path, eval_rows=10, overwrite=True, **SMALL)
    assert generate("criteo-kaggle", tmp_path, eval_rows=10, **SMALL).reused


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("eval_rows", [0, 10])
def test_of_two_runs_into_one_folder_the_second_is_refused(tmp_path, monkeypatch, overwrite, eval_rows):
    folder, refused = tmp_path / "new", []

    def second(*arguments):
        if not refused:
            with pytest.raises(FileExistsError, match="another run is writing into this folder") as caught:
                generate("criteo-kaggle", folder, overwrite=overwrite, seed=2, **SMALL)
            refused.append(caught.value)
        return format_criteo(*arguments)

    format_criteo = blocks.format_criteo
    monkeypatch.setattr(blocks, "format_criteo", second)
    report = generate("criteo-kaggle", folder, eval_rows=eval_rows, **SMALL)
    assert len(refused) == 1
    assert generate("criteo-kaggle", folder, eval_rows=eval_rows, **SMALL).reused  # and the lock is gone
    assert report.parameters["seed"] == 0
