"""Whether all ranks make a step with the same options: each updates rows of all with its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.embed.arrays import U32
from headrace.embed.optimizers import UpdateRule
from headrace.formats.schema import Schema, table_uid
from headrace.indexer.exchange.agreement import agree
from headrace.indexer.exchange.channel import Channel


def check_options(channel: Channel, step: int, schema: Schema, rules: Sequence[UpdateRule], frozen: U32) -> None:
    """RankMismatchError, on all ranks, unless the options of each table, and which are frozen, are the same on all.

    `rules` are those of the row layouts, `frozen` the uids of tables. Digests travel; the options only where they
    differ. It names option, tables and ranks.
    """
    facts = _facts(schema, rules, frozen)
    digest = hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=16).digest()
    what = f"the options of step {step}"
    digests = channel.all_gather(np.frombuffer(digest, np.uint8), what)
    if (digests != digests[0]).any():
        wrong = f"step {step} is made with other options on some ranks (schedulers, and what sets options, run on all)"
        agree(channel, facts, what, wrong=wrong)


def _facts(schema: Schema, rules: Sequence[UpdateRule], frozen: U32) -> dict[str, Any]:
    options = {
        schema.tables[table].name: {
            "lr": float(rule.lr),
            "eps": float(rule.eps),
            "weight_decay": float(rule.weight_decay),
            "betas": [float(beta) for beta in rule.betas],
        }
        for group, rule in zip(schema.groups, rules, strict=True)
        for table in group.tables
    }
    names = [table.name for table in schema.tables if table_uid(table.name) in frozen]
    return {
        "number of steps made": max((rule.step - 1 for rule in rules), default=0),
        "frozen": names,
        "optimizer": options,
    }
