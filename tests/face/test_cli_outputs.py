"""Files that commands write: what cannot be written is refused before any work, by all of them alike."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.cli_outputs import replaceable, writable, writable_folder
from headrace.cli_report import json_option
from tests.support.taobao_ad_files import real_samples, write_files


@click.command()
@click.option("--plain", callback=writable)
@click.option("--whole", callback=replaceable)
@click.option("--folder", callback=writable_folder)
@json_option
def write(plain: str | None, whole: str | None, folder: str | None, json_path: str | None) -> None:
    click.echo("begun")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(write, list(map(str, arguments)))


def refused(message: str, *arguments: object) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "begun" not in result.output


FILES = ("--plain", "--whole", "--json")


@pytest.mark.parametrize("option", FILES)
def test_what_cannot_be_written(option: str, tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "dangling").symlink_to("no/such")
    (tmp_path / "long").symlink_to("n" * 256)
    (tmp_path / "file").touch()
    for name, message in (
        ("", "the path is empty; name a file"),
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "x", f"there is no folder {str(tmp_path / 'no')!r}"),
        (tmp_path / "file" / "x", "cannot be written: Not a directory"),
        (tmp_path / ("n" * 256), "cannot be written: File name too long"),
        (tmp_path / "long", "cannot be written: File name too long"),
        (tmp_path / "circle", "cannot be written: Too many levels of symbolic links"),
        (tmp_path / "dangling", f"leads to {str(tmp_path / 'no' / 'such')!r}, and there is no folder"),
        ("a\0b", "cannot be written: embedded null byte"),
    ):
        refused(message, option, name)
    assert sorted(os.listdir(tmp_path)) == ["circle", "dangling", "file", "long"]


@pytest.mark.parametrize("option", FILES)
def test_what_can_be_written(option: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "dangling").symlink_to("there/new")
    (tmp_path / "file").touch()
    for name in ("new", "file", "dangling", "n" * 255):
        assert run(option, tmp_path / name).exit_code == 0
    assert sorted(os.listdir(tmp_path)) == ["dangling", "file", "there"]


def test_a_device_is_written_to_but_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path / "pipe", "/dev/null"):
        assert run("--plain", name, "--json", name).exit_code == 0
        refused("a pipe, socket or device stands where the file is to be written", "--whole", name)


@pytest.mark.parametrize(("first", "second"), [("--plain", "--whole"), ("--json", "--plain"), ("--whole", "--json")])
def test_two_options_with_one_file_are_refused(first: str, second: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x")
    for name in ("x", "./x", "link", f"../{tmp_path.name}/x"):
        refused(f"is the file of {first} too; name another", first, tmp_path / "x", second, f"{tmp_path}/{name}")
    assert run(first, tmp_path / "x", second, tmp_path / "y").exit_code == 0


def test_a_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in (tmp_path, tmp_path / "new", tmp_path / "new" / "newer"):
        assert run("--folder", name).exit_code == 0
    refused("the path is empty; name a folder", "--folder", "")
    refused("is not a folder", "--folder", tmp_path / "file")
    refused("cannot be written to: Not a directory", "--folder", tmp_path / "file" / "x")
    refused("cannot be written to: File name too long", "--folder", tmp_path / ("n" * 256))
    assert os.listdir(tmp_path) == ["file"]


COMMANDS = (
    ("bench index", ("--json", "--plot")),
    ("bench plan", ("--json",)),
    ("bench embed", ("--json",)),
    ("bench decode", ("--json",)),
    ("bench loader", ("--json",)),
    ("plan x", ("--json", "--plot", "--out")),
    ("stats x", ("--json", "--plot", "--plot-features")),
    ("replay x", ("--json",)),
    ("lint x", ("--json",)),
)


@pytest.mark.parametrize(("command", "options"), COMMANDS)
def test_all_commands_refuse_alike(command: str, options: tuple[str, ...], tmp_path: Path) -> None:
    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(main, [*command.split(), *map(str, arguments)])
        assert result.exit_code == 2, result.output
        return result.output

    for option in options:
        suffix = ".png" if option == "--plot" else ""
        assert "File name too long" in invoke(option, tmp_path / ("n" * 256 + suffix))
        assert "the path is empty" in invoke(option, "")
    for one in options:
        for other in options:
            if one < other and "--plot-features" not in (one, other):
                assert f"is the file of {one} too" in invoke(one, tmp_path / "x.png", other, tmp_path / "x.png")
    assert os.listdir(tmp_path) == []


READERS = (
    ("plan DATA", ("--json", "--out")),
    ("plan DATA --ranks 2", ("--json", "--out")),
    ("stats DATA", ("--json",)),
    ("replay DATA", ("--json",)),
    ("lint DATA", ("--json",)),
    ("convert DATA --out there", ("--json",)),
    ("bench decode --data DATA", ("--json",)),
    ("bench loader --data DATA", ("--json",)),
    ("bench index --data DATA", ("--json",)),
)


@pytest.mark.parametrize(("command", "options"), READERS)
def test_no_command_overwrites_what_it_reads(
    command: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generated = CliRunner().invoke(main, ["generate", "criteo-kaggle", "--out", "data", "--rows", "20"])
    assert generated.exit_code == 0, generated.output
    (tmp_path / "link").symlink_to("data/train_0.txt")
    before = {file.name: file.read_bytes() for file in (tmp_path / "data").iterdir()}

    def refuses(data: str, option: str, path: str) -> None:
        words = [data if word == "DATA" else word for word in command.split()]
        for arguments in ([*words, option, path], [words[0], option, path, *words[1:]]):
            if arguments[:2] == ["bench", option]:
                continue
            result = CliRunner().invoke(main, arguments)
            assert result.exit_code == 2, result.output
            assert option in result.output
            assert "is read (" in result.output

    for option in options:
        for data in ("data/train_0.txt", "data", "data/*.txt", "link"):
            for path in ("data/train_0.txt", "./data/../link"):
                refuses(data, option, path)
        refuses("data", option, "data/manifest.json")
    assert {file.name: file.read_bytes() for file in (tmp_path / "data").iterdir()} == before


JOINING = ("plan DATA", "plan DATA --ranks 2", "stats DATA", "replay DATA", "lint DATA", "convert DATA --out OUT")


@pytest.mark.parametrize("command", JOINING)
def test_nor_what_is_joined_with_it(command: str, tmp_path: Path, shared_data: Path) -> None:
    write_files(tmp_path, real_samples(shared_data)[:20])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    places = {"DATA": str(tmp_path / "raw_sample.csv"), "OUT": str(tmp_path / "out")}
    words = [places.get(word, word) for word in command.split()]
    for side in ("ad_feature.csv", "user_profile.csv"):
        result = CliRunner().invoke(main, [*words, "--dataset", "taobao-ad-raw", "--json", str(tmp_path / side)])
        assert result.exit_code == 2, result.output
        assert "is read (beside raw_sample.csv), and would be overwritten" in result.output
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("option", ["--json", "--out"])
@pytest.mark.parametrize(
    "read", ["--schema s.yaml data", "--links s.yaml --ranks 2 data", "--read s.yaml", "--diff s.yaml s.yaml"]
)
def test_nor_what_an_option_names(option: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "ranks_per_node: 2\n" if "--links" in read else "sparse: [a]\n"
    (tmp_path / "s.yaml").write_text(text)
    for arguments in ([*read.split(), option, "s.yaml"], [option, "s.yaml", *read.split()]):
        result = CliRunner().invoke(main, ["plan", *arguments])
        assert result.exit_code == 2, result.output
        assert f"'{option}': " in result.output
        assert f"is read ({read.split()[0]})" in result.output
    assert (tmp_path / "s.yaml").read_text() == text


def test_a_report_may_lie_beside_the_data(tmp_path: Path) -> None:
    generated = CliRunner().invoke(main, ["generate", "criteo-kaggle", "--out", str(tmp_path), "--rows", "20"])
    assert generated.exit_code == 0, generated.output
    result = CliRunner().invoke(main, ["lint", str(tmp_path), "--json", str(tmp_path / "report.json")])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", ["replay x --resume", "bench decode --work", "bench loader --work"])
def test_folders_are_refused_alike(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, message in (("", "the path is empty; name a folder"), (tmp_path / "file", "is not a folder")):
        result = CliRunner().invoke(main, [*command.split(), str(name)])
        assert result.exit_code == 2, result.output
        assert message in result.output


def test_what_is_allowed_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real.json")
    result = CliRunner().invoke(main, ["generate", "criteo-kaggle", "--out", str(tmp_path / "d"), "--rows", "50"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["lint", str(tmp_path / "d"), "--json", str(tmp_path / "link")])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "real.json").read_text())["clean"] is True
