"""A DLRM over ranks on a small cluster of network namespaces: headrace beside TorchRec, table-wise and row-wise.

All contenders stand on the nodes at once and train in turn on the same rows, so that ratios are of one run; the links'
rate is changed between turns. The dense part alone is measured too: sparse time is a step's less that.
Run by `make bench-ranks`; see README.md for the keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from network_lab import UNLIMITED, NetworkLab, missing
from rank_costs import curve, row_costs
from rank_dense import DIM
from rank_group import RankGroup
from rank_streams import read_stream, write_stream

from headrace.indexer.cost_curve import CostCurve, RowCosts

DENSE = "dense"
PEERS = ("torchrec_table_wise", "torchrec_row_wise")
FIRST_PORT = 29611
PREDICT_STEPS, PREDICT_TURNS = 24, 4
"""Of what is measured for a prediction: of each kind of exchange, and of training with one row in R and without."""


@dataclass(frozen=True)
class Topology:
    """`nodes` nodes of `per_node` ranks."""

    nodes: int
    per_node: int

    @staticmethod
    def parse(text: str) -> Topology:
        try:
            nodes, per_node = map(int, text.split("x"))
        except ValueError:
            raise click.BadParameter(f"{text!r} is not NODESxRANKS, as in 4x1") from None
        return Topology(nodes, per_node)

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.nodes}x{self.per_node}"


@dataclass
class Turns:
    """What one contender did at one rate, over all its turns; `nodes` are those of the topology."""

    nodes: int
    step_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    interface_bytes: list[float] = field(default_factory=list)
    payload: dict[str, list[float]] = field(default_factory=dict)
    parts: dict[str, list[float]] = field(default_factory=dict)

    def add(self, answers: Sequence[dict[str, Any]], per_node: int) -> None:
        """`answers` of all ranks to one order. A step ends when its last rank does; bytes are of a node and step."""
        ends = np.array([answer["times"] for answer in answers]).max(axis=0)
        steps = len(ends) - 1
        self.step_s += np.diff(ends).tolist()
        self.cpu_s.append(sum(answer["cpu_s"] for answer in answers) / steps)
        first_of_node = answers[::per_node]
        self.interface_bytes.append(sum(answer["sent"] for answer in first_of_node) / steps / self.nodes)
        for purpose in answers[0]["payload"]:
            total = sum(answer["payload"].get(purpose, 0) for answer in answers)
            self.payload.setdefault(purpose, []).append(total / steps / self.nodes)

        for part in answers[0]["parts"]:
            self.parts.setdefault(part, []).append(median(answer["parts"][part] for answer in answers) / steps)

    def payload_bytes(self) -> dict[str, float]:
        return {purpose: float(np.mean(n)) for purpose, n in self.payload.items() if any(n)}


def hot_rows_of(name: str) -> int:
    """N of a contender named headrace[_flat | _two_level[_messages]][_rN]."""
    hot = [int(word[1:]) for word in name.split("_")[1:] if word.startswith("r") and word[1:].isdigit()]
    return hot[0] if hot else 0


def levels_of(name: str) -> str:
    """The name without R: headrace_flat, headrace_two_level or headrace_two_level_messages."""
    return name.rpartition("_r")[0] if hot_rows_of(name) else name


def headrace_settings(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Of a contender with one level or two, shared memory within a node or messages, and N rows of R."""
    levels = {"levels": 2 if "two_level" in name else 1, "shared_memory": "messages" not in name}
    return {**settings, **levels, "hot_rows": hot_rows_of(name)}


def contenders_of(
    topology: Topology, systems: Sequence[str], hot_rows: Sequence[int], *, messages: bool = False
) -> list[str]:
    """Names of what runs on a topology: of headrace flat, two-level where ranks share nodes (with `messages` also
    without shared memory), and with R."""
    ours = ["headrace_flat"]
    if topology.per_node > 1:
        ours += ["headrace_two_level"] + ["headrace_two_level_messages"] * messages
    ours += [f"{name}_r{n}" for name in ours for n in hot_rows if n]
    return [DENSE] + [name for name in (*ours, *PEERS) if any(name.startswith(system) for system in systems)]


def measure(
    topology: Topology,
    rates: Sequence[str],
    names: Sequence[str],
    stream: str,
    *,
    settings: dict[str, Any],
    plan: dict[str, int],
    timeout_s: float,
) -> dict[str, dict[str, Turns]]:
    """Turns by rate and contender."""
    turns = {rate: {name: Turns(topology.nodes) for name in names} for rate in rates}
    with NetworkLab(topology.nodes) as lab, _groups(lab, topology, names, stream, settings, timeout_s) as groups:
        _until_there_is_an_r(groups, settings)
        for round_ in range(plan["rounds"]):
            for rate in rates:
                lab.set_rate(rate)
                for name, group in groups.items():
                    slow = name in PEERS
                    if slow and round_ >= plan["peer_rounds"]:
                        continue
                    steps = plan["peer_steps"] if slow else plan["steps"]
                    answers = group.order("train", warm=plan["peer_warm"] if slow else plan["warm"], steps=steps)
                    turns[rate][name].add(answers, topology.per_node)
                    ms = median(turns[rate][name].step_s) * 1e3
                    click.echo(f"{topology} {rate} {name}: {ms:.0f} ms a step", err=True)
            lab.set_rate("unlimited")
    return turns


@dataclass
class Prediction:
    """What R costs at one rate with one level or two: measured costs a row, and the curve of the loader's rule."""

    costs: RowCosts
    curve: CostCurve


def predict(
    topology: Topology,
    rates: Sequence[str],
    levels: Sequence[str],
    folder: str,
    *,
    settings: dict[str, Any],
    timeout_s: float,
) -> dict[tuple[str, str], Prediction]:
    """By rate and name of the level."""
    of_level = {level: (level.replace("headrace", "costs"), level, f"{level}_r1") for level in levels}
    names = [name for level in levels for name in of_level[level]]
    stream, out = read_stream(Path(folder)), {}
    with NetworkLab(topology.nodes) as lab, _groups(lab, topology, names, folder, settings, timeout_s) as groups:
        _until_there_is_an_r(groups, settings)
        for rate in rates:
            lab.set_rate(rate)
            for level in levels:
                costs_name, *trained = of_level[level]
                costs, turns = groups[costs_name], {name: Turns(topology.nodes) for name in trained}
                costs.order("train", warm=1, steps=1)
                steps = [costs.order("train", warm=0, steps=1)[0]["parts"] for _ in range(PREDICT_STEPS)]
                for _ in range(PREDICT_TURNS):
                    for name in trained:
                        turns[name].add(groups[name].order("train", warm=3, steps=8), topology.per_node)
                without, with_one = (median(turns[name].step_s) for name in trained)
                found = row_costs(steps, c_step=max(0.0, with_one - without))
                levels_of_it = 2 if "two_level" in level else 1
                best = curve(stream, found, levels=levels_of_it, node_size=topology.per_node)
                out[rate, level] = Prediction(found, best)
                click.echo(f"{topology} {rate} {level}: {found}, R of {best.optimum} rows", err=True)
        lab.set_rate(UNLIMITED)
    return out


def _until_there_is_an_r(groups: dict[str, RankGroup], settings: dict[str, Any]) -> None:
    for name, group in groups.items():
        if hot_rows_of(name):
            group.order("train", warm=settings["hot_every"], steps=1)


def against_predicted(turns: dict[str, Turns], level: str, prediction: Prediction) -> dict[str, Any]:
    """Measured steps by rows of R, beside what the rule makes of the measured costs."""
    measured = {hot_rows_of(name): median(one.step_s) * 1e3 for name, one in turns.items() if levels_of(name) == level}
    cost, best = prediction.curve.cost, min(measured, key=lambda rows: measured[rows])
    chosen = min(measured, key=lambda rows: abs(rows - prediction.curve.optimum))
    return {
        "costs_us": {name: value * 1e6 for name, value in vars(prediction.costs).items()},
        "predicted_rows": prediction.curve.optimum,
        "predicted_rows_within_1_percent": [prediction.curve.band_low, prediction.curve.band_high],
        "rows_that_a_step_may_use": len(cost) - 1,
        "predicted_ms_over_no_rows": {n: float(cost[min(n, len(cost) - 1)] - cost[0]) * 1e3 for n in measured},
        "step_ms": measured,
        "fastest_rows": best,
        "predicted_over_fastest": measured[chosen] / measured[best],
    }


@contextlib.contextmanager
def _groups(
    lab: NetworkLab, topology: Topology, names: Sequence[str], stream: str, settings: dict[str, Any], timeout_s: float
) -> Iterator[dict[str, RankGroup]]:
    """All contenders, standing; killed when something fails, else ended."""
    groups: dict[str, RankGroup] = {}
    try:
        for number, name in enumerate(names):
            own = headrace_settings(name, {**settings, "stream": stream})
            port = FIRST_PORT + number
            groups[name] = RankGroup(lab, topology.per_node, name, own, port=port, timeout_s=timeout_s)
            groups[name].ready()
        yield groups
        for group in groups.values():
            group.close()
    finally:
        for group in groups.values():
            group.kill()


def report(
    topology: Topology,
    turns: dict[str, dict[str, Turns]],
    batch_size: int,
    own_bytes: dict[int, float],
    predictions: dict[tuple[str, str], Prediction],
) -> dict[str, Any]:
    """Figures of one topology by rate; `own_bytes` are those of the unique rows of a rank (1) and of a node."""
    out: dict[str, Any] = {"unique_row_bytes_per_step": own_bytes}
    for rate, of_rate in turns.items():
        dense_s = median(of_rate[DENSE].step_s)
        dense_bytes = float(np.mean(of_rate[DENSE].interface_bytes))
        lines = {
            name: _line(of_name, dense_s, dense_bytes, topology.ranks * batch_size)
            for name, of_name in of_rate.items()
            if of_name.step_s
        }
        ours = {name: line for name, line in lines.items() if name.startswith("headrace")}
        peers = {name: line for name, line in lines.items() if name in PEERS}
        out[rate] = {
            "dense_ms": dense_s * 1e3,
            **{key: {name: line[key] for name, line in lines.items()} for key in lines[DENSE]},
            "payload_bytes_by_purpose": {name: of_rate[name].payload_bytes() for name in ours},
            "parts_ms": {name: {p: median(s) * 1e3 for p, s in of_rate[name].parts.items()} for name in ours},
            "payload_over_unique_rows": {
                name: line["payload_bytes_per_step"] / own_bytes[topology.per_node if "two_level" in name else 1]
                for name, line in ours.items()
            },
            "interface_over_payload": {
                name: line["sparse_interface_bytes_per_step"] / line["payload_bytes_per_step"]
                for name, line in ours.items()
            },
            "peers": _against(ours, peers),
            "hot_rows": {
                level: against_predicted(of_rate, level, one)
                for (other, level), one in predictions.items()
                if other == rate
            },
        }
    return out


def _line(turns: Turns, dense_s: float, dense_bytes: float, rows: int) -> dict[str, float]:
    step_s = median(turns.step_s)
    on_link = float(np.mean(turns.interface_bytes)) - dense_bytes
    counted = sum(turns.payload_bytes().values())
    return {
        "samples_per_s": rows / step_s,
        "step_ms": step_s * 1e3,
        "fastest_step_ms": min(turns.step_s) * 1e3,
        "slowest_step_ms": max(turns.step_s) * 1e3,
        "sparse_ms": (step_s - dense_s) * 1e3,
        "cpu_ms": median(turns.cpu_s) * 1e3,
        "payload_bytes_per_step": counted or on_link,
        "sparse_interface_bytes_per_step": on_link,
    }


def _against(ours: dict[str, dict[str, float]], peers: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Each of headrace's against the better of the peers in each figure."""
    if not peers:
        return {}
    fastest = max(line["samples_per_s"] for line in peers.values())
    sparse = min(line["sparse_ms"] for line in peers.values())
    payload = min(line["sparse_interface_bytes_per_step"] for line in peers.values())
    return {
        name: {
            "samples_per_s_times": line["samples_per_s"] / fastest,
            "sparse_times_smaller": sparse / line["sparse_ms"] if line["sparse_ms"] > 0 else None,
            "bytes_times_fewer": payload / line["sparse_interface_bytes_per_step"],
        }
        for name, line in ours.items()
    }


def table(results: dict[str, Any]) -> str:
    """The figures of all topologies and rates as a Markdown table."""
    head = (
        "topology",
        "link",
        "contender",
        "samples/s",
        "step ms",
        "sparse ms",
        "payload MB",
        "interface MB",
        "CPU ms",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for topology, of_topology in results.items():
        for rate, figures in of_topology.items():
            if not isinstance(figures, dict) or "step_ms" not in figures:
                continue
            for name in figures["step_ms"]:
                cells = [
                    f"{figures['samples_per_s'][name]:,.0f}",
                    f"{figures['step_ms'][name]:.0f}",
                    f"{figures['sparse_ms'][name]:.0f}",
                    f"{figures['payload_bytes_per_step'][name] / 1e6:.2f}",
                    f"{figures['sparse_interface_bytes_per_step'][name] / 1e6:.2f}",
                    f"{figures['cpu_ms'][name]:.0f}",
                ]
                lines.append(f"| {topology} | {rate} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@click.command()
@click.option("--topologies", default="4x1,2x2", show_default=True, help="Nodes x ranks a node.")
@click.option("--rates", default="1gbit,250mbit", show_default=True, help="Of a node's link, as tc writes them.")
@click.option("--systems", default="headrace,torchrec", show_default=True, help="Names, or how they begin.")
@click.option("--hot-rows", default="", help="Also with R of these many rows, as in 4096,32768.")
@click.option("--predict/--no-predict", default=False, help="Also with the R that the rule makes of measured costs.")
@click.option("--messages/--no-messages", default=False, help="Two-level also without shared memory in a node.")
@click.option("--preset", default="criteo-kaggle", show_default=True)
@click.option("--batch-size", type=int, default=4096, show_default=True, help="Rows a rank.")
@click.option("--window", type=int, default=8, show_default=True)
@click.option("--stream-steps", type=int, default=40, show_default=True, help="Steps until the rows begin anew.")
@click.option("--steps", type=int, default=8, show_default=True, help="Measured steps of a turn.")
@click.option("--warm", type=int, default=4, show_default=True, help="Steps of a turn before them.")
@click.option("--rounds", type=int, default=2, show_default=True)
@click.option("--peer-steps", type=int, default=3, show_default=True)
@click.option("--peer-warm", type=int, default=1, show_default=True)
@click.option("--peer-rounds", type=int, default=1, show_default=True)
@click.option("--timeout-s", type=float, default=120.0, show_default=True, help="Of each wait for a rank.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--json", "json_path", default="-", show_default=True, help="Where the report goes; - is standard output."
)
def main(json_path: str, **options: Any) -> None:
    """Print a JSON report and a table."""
    why = missing()
    if why is not None:
        click.echo(f"skipped: {why}")
        return
    plan = {k: options[k] for k in ("steps", "warm", "rounds", "peer_steps", "peer_warm", "peer_rounds")}
    settings = {"window": options["window"], "hot_every": 100, "seed": options["seed"]}
    hot_rows = [int(n) for n in options["hot_rows"].split(",") if n]
    results: dict[str, Any] = {}
    for topology in map(Topology.parse, options["topologies"].split(",")):
        with tempfile.TemporaryDirectory() as folder:
            shape = {"ranks": topology.ranks, "batch_size": options["batch_size"], "steps": options["stream_steps"]}
            write_stream(Path(folder), options["preset"], **shape, seed=options["seed"])
            stream = read_stream(Path(folder))
            systems, rates = options["systems"].split(","), options["rates"].split(",")
            timeout_s = options["timeout_s"]
            predictions: dict[tuple[str, str], Prediction] = {}
            if options["predict"]:
                levels = [n for n in contenders_of(topology, systems, []) if n.startswith("headrace")]
                predictions = predict(topology, rates, levels, folder, settings=settings, timeout_s=timeout_s)
            sizes = sorted({*hot_rows, *(one.curve.optimum for one in predictions.values())})
            names = contenders_of(topology, systems, sizes, messages=options["messages"])
            turns = measure(topology, rates, names, folder, settings=settings, plan=plan, timeout_s=timeout_s)
        away = 1 - 1 / topology.nodes  # share of the rows whose owner is on another node
        own = {n: stream.unique_rows(n) * topology.per_node / n * away * DIM * 4 * 2 for n in {1, topology.per_node}}
        results[str(topology)] = report(topology, turns, options["batch_size"], own, predictions)
    full = {"options": options, "cores": len(os.sched_getaffinity(0)), **results}
    text = json.dumps(full, indent=2)
    if json_path == "-":
        click.echo(text)
    else:
        Path(json_path).write_text(text)
    click.echo(table(results))


if __name__ == "__main__":
    main()
