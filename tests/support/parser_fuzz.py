"""A process that reads files with bytes changed or cut, one dataset after the other, for some seconds each.

Every read ends in rows that add up, or in one of the errors of `errors.py`. It is a process of its own, since what is
tested is also that it survives: Arrow itself trusts the offsets in IPC files.

``python -m tests.support.parser_fuzz FOLDER SEED SECONDS NAME...`` prints a line for each name: reads, those that ended
in an error, rows, and refused rows. A read that fails the test is named by its number; it has the same bytes in each
run with that seed.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import random
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.criteo_arrays import DCNV2_MULTI_HOT_SIZES
from headrace.formats.datasets import open_dataset
from headrace.formats.errors import BadRecordError, ColumnMismatchError, CorruptShardError
from headrace.formats.schema import Dense, Label, Schema, Sparse
from tests.support.criteo_text import random_line

READ_TIMEOUT_S = 800
ROWS = 60
SPECIAL = b"\t\n\r\x00,-0.1fgG :/@`^\x01\x02\x03\xff"

# What a join refuses besides: a key that is there twice, or not at all
JOIN_ERRORS = ("both have ", "two lines have ", "by which rows are found")
ARROW_SCHEMA = Schema(
    labels=(Label(name="y"),),
    dense=(Dense(name="d"),),
    sparse=(Sparse(name="c"), Sparse(name="h", encoding="uint64", multi_hot=True)),
)


@dataclass(frozen=True)
class Form:
    """A dataset's files, by name, as bytes; `options` are those of `open_dataset`; `header`: how many lines of text."""

    dataset: str
    files: dict[str, bytes]
    options: dict[str, Any]
    header: int | None = None


# ---- whole files ----------------------------------------------------------------------------------------------------


def lines(header: str, make: Callable[[int, random.Random], str]) -> bytes:
    rng = random.Random(0)
    rows = [make(i, rng) for i in range(ROWS)]
    return "".join(f"{line}\n" for line in ([header] if header else []) + rows).encode()


def criteo(_: int, rng: random.Random) -> str:
    return random_line(rng, ids=50)


def criteo_csv(_: int, rng: random.Random) -> str:
    return random_line(rng, ids=50).replace("\t", ",")


def names(prefix: str, count: int) -> str:
    return ",".join(f"{prefix}{i}" for i in range(1, count + 1))


def text_forms() -> dict[str, Form]:
    tsv = lines("", criteo)
    csv = lines(f"Id,Label,{names('I', 13)},{names('C', 26)}", lambda i, rng: f"{i}," + criteo_csv(i, rng))
    avazu_ids = ",".join(["1fbe01fe"] * 9)
    avazu = lines(
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
        f"device_model,device_type,device_conn_type,{','.join(f'C{i}' for i in range(14, 22))}",
        lambda i, rng: f"{2**63 + i},{i % 2},141021{i % 24:02d},1005,0,{avazu_ids},1,0,15704,320,50,1722,0,35,-1,{i}",
    )
    user = lines("", lambda i, rng: f"{i // 9},{rng.randrange(99)},7,{rng.choice(['pv', 'buy'])},{1511544070 + i}")
    log = lines(
        "user,time_stamp,btag,cate,brand",
        lambda i, rng: f"{i // 9},{149391 + i},{rng.choice(['pv', 'fav'])},5,NULL",
    )
    joined_ad = lines(
        "clk,time_stamp,userid,adgroup_id,pid,cate_id,campaign_id,customer,brand,price,cms_segid,cms_group_id,"
        "final_gender_code,age_level,pvalue_level,shopping_level,occupation,new_user_class_level,click_sequence",
        lambda i, rng: f"{i % 2},x,{i},9,430548_1007,3,4,5,,3.9,0,3,2,3,,3,0,,{'^'.join(map(str, range(i % 4)))}",
    )
    raw_ad = {
        "raw_sample.csv": lines(
            "user,time_stamp,adgroup_id,pid,nonclk,clk", lambda i, rng: f"{i % 7},14939{i},{i % 5},430539_1007,1,0"
        ),
        "ad_feature.csv": lines(
            "adgroup_id,cate_id,campaign_id,customer,brand,price", lambda i, rng: f"{i},5,6,7,NULL,{i}.5"
        ),
        "user_profile.csv": lines(
            "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,shopping_level,occupation,"
            "new_user_class_level ",
            lambda i, rng: f"{i},0,3,2,3,,3,0,",
        ),
    }
    fields = "101,121,122,124,125,126,127,128,129,205,206,207,210,216,508,509,702,853,301,109_14,110_14,127_14,150_14"
    weights = "D109_14,D110_14,D127_14,D150_14,D508,D509,D702,D853"
    ali = lines(f"click,purchase,{fields},{weights}", lambda i, rng: ",".join(["0", "0", *["7"] * 23, *["0.25"] * 8]))
    raw_ali = {
        "sample_skeleton_train.csv": lines(
            "", lambda i, rng: f"{i},{i % 2},0,{i % 9:016x},2,205\x02{i}\x031.0\x01210\x02{i}\x030.5"
        ),
        "common_features_train.csv": lines("", lambda i, rng: f"{i:016x},1,101\x02{i}\x031.0"),
    }
    return {
        "criteo-kaggle": Form("criteo-kaggle", {"train.txt": tsv}, {}, 0),
        "criteo-csv": Form("criteo-csv", {"train.csv": csv}, {}, 1),
        "avazu": Form("avazu", {"train.csv": avazu}, {}, 1),
        "taobao-userbehavior": Form("taobao-userbehavior", {"UserBehavior.csv": user}, {}, 0),
        "taobao-behavior-log": Form("taobao-behavior-log", {"behavior_log.csv": log}, {}, 1),
        "taobao-ad": Form("taobao-ad", {"ad.csv": joined_ad}, {}, 1),
        "taobao-ad-raw": Form("taobao-ad-raw", raw_ad, {}, 1),
        "ali-ccp": Form("ali-ccp", {"ali.csv": ali}, {}, 1),
        "ali-ccp-raw": Form("ali-ccp-raw", raw_ali, {}, 0),
    }


def arrow_forms() -> dict[str, Form]:
    coded = pa.array([f"{i:x}" for i in range(100)])
    lists = pa.array([[i] * (i % 3) for i in range(100)], pa.list_(pa.uint64()))
    table = pa.table({"y": [0, 1] * 50, "d": list(range(100)), "c": coded, "h": lists})
    dictionary = table.set_column(2, "c", coded.dictionary_encode())
    parquet = io.BytesIO()
    pq.write_table(table, parquet, row_group_size=30, write_page_checksum=True)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for i in range(4):
            data = ipc(pa.ipc.new_stream, dictionary.slice(25 * i, 25))
            member = tarfile.TarInfo(f"part-{i}.arrow")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    options: dict[str, Any] = {"schema": ARROW_SCHEMA}
    return {
        "parquet": Form("parquet", {"a.parquet": parquet.getvalue()}, options),
        "ipc-file": Form("parquet", {"a.arrow": ipc(pa.ipc.new_file, dictionary)}, options),
        "ipc-stream": Form("parquet", {"a.arrows": ipc(pa.ipc.new_stream, dictionary)}, options),
        "tar": Form("tar", {"a.tar": tar.getvalue()}, options),
        "tar.gz": Form("tar", {"a.tar.gz": gzip.compress(tar.getvalue())}, options),
        "tar.zst": Form("tar", {"a.tar.zst": zstd(tar.getvalue())}, options),
    }


def ipc(new: Any, table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=30)
    return bytes(sink.getvalue())


def array_forms() -> dict[str, Form]:
    ints = np.arange(ROWS * 40, dtype="<i4").reshape(ROWS, 40)
    ints[:, 0] %= 2
    packed = ints.copy()
    packed[:, 1:14] = ints[:, 1:14].astype("<f4").view("<i4")
    hot = np.zeros((ROWS, 228), "<i4")
    whole = {"X_int": ints[:, 1:14], "X_cat": ints[:, 14:], "y": ints[:, :1].astype(np.float32)[:, 0]}
    labels, dense = saved(ints[:, :1]), saved(ints[:, 1:14].astype(np.float32))
    days = {"day_0_labels.npy": labels, "day_0_dense.npy": dense}
    lists = {str(j): np.full((ROWS, size), j, np.int32) for j, size in enumerate(DCNV2_MULTI_HOT_SIZES)}
    forms = {
        "dlrm-bin": {"train_data.bin": ints.tobytes()},
        "packed-bin": {"train.bin": packed.tobytes()},
        "dcnv2-bin": {"train_data.bin": hot.tobytes()},
        "dlrm-npz": {"day_0_reordered.npz": saved(whole, np.savez)},
        "torchrec-npy": {**days, "day_0_sparse.npy": saved(ints[:, 14:].astype(np.int64))},
        "dcnv2-npz": {**days, "day_0_sparse_multi_hot.npz": saved(lists, np.savez)},
    }
    split = {"label.bin": ints[:, 0].astype(np.uint8), "numerical.bin": ints[:, 1:14].astype("<f2")}
    split |= {f"cat_{i}.bin": (ints[:, 14 + i] % 100).astype(("<i1", "<i2", "<i4")[i % 3]) for i in range(26)}
    forms["nvidia-split"] = {name: array.tobytes() for name, array in split.items()}
    found = {name: Form(f"criteo-{name}", files, {}) for name, files in forms.items()}
    compressed = {"day_0_reordered.npz": saved(whole, np.savez_compressed)}
    return {**found, "dlrm-npz-compressed": Form("criteo-dlrm-npz", compressed, {})}


def saved(arrays: Any, save: Callable[..., None] = np.save) -> bytes:
    sink = io.BytesIO()
    save(sink, **arrays) if isinstance(arrays, dict) else save(sink, arrays)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data))


def compressed_forms(plain: Form) -> dict[str, Form]:
    """The same text compressed; the bytes of the text, or of what it was compressed to, are damaged."""
    return {f"{plain.dataset}{end}": plain for end in (".gz", ".zst")}


def forms() -> dict[str, Form]:
    text = text_forms()
    return {**text, **compressed_forms(text["criteo-kaggle"]), **arrow_forms(), **array_forms()}


# ---- damage ---------------------------------------------------------------------------------------------------------


def damaged(whole: bytes, rng: random.Random, *, text: bool) -> bytes:
    out = bytearray(whole)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        byte = SPECIAL[rng.randrange(len(SPECIAL))] if text else rng.randrange(256)
        kind = rng.randrange(4 if text else 2)
        if kind <= 1:
            out[at : at + 1] = bytes([byte])
        elif kind == 2:
            del out[at : at + rng.randrange(1, 200)]
        else:
            out[at:at] = out[rng.randrange(len(out) + 1) :][: rng.randrange(200)]
    return bytes(out[: rng.randrange(len(out) + 1)] if rng.random() < 0.15 else out)


def lines_of(text: bytes, header: int) -> int:
    """Lines behind the header, as the format's readers count them: blank ones at the end are none."""
    found = text.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    while found and found[-1] in (b"", b"\r"):
        found.pop()
    return max(0, len(found) - header)


def write_case(folder: Path, name: str, form: Form, rng: random.Random) -> tuple[Path, int | None]:
    """Write the files of a form, one of them damaged; the path to read, and how many rows it has if that is known."""
    victim = rng.choice(list(form.files))
    first, expected = next(iter(form.files)), None
    for file, whole in form.files.items():
        data, path = whole, folder / file
        end = next((e for e in (".gz", ".zst") if name.endswith(e) and not file.endswith(e)), "")
        squeezed = bool(end) and rng.random() < 0.5
        if file == victim and not squeezed:
            data = damaged(data, rng, text=form.header is not None)
        if file == first and form.header is not None and not squeezed:
            expected = lines_of(data, form.header)
        if end:
            path, data = folder / (file + end), gzip.compress(data, 1) if end == ".gz" else zstd(data)
            data = damaged(data, rng, text=False) if squeezed else data
        path.write_bytes(data)
    last = form.files if form.dataset.startswith(("criteo-torchrec", "criteo-dcnv2-npz", "criteo-nvidia")) else [first]
    return (folder if len(last) > 1 else folder / (first + end)), expected


def read(path: Path, form: Form, rng: random.Random) -> tuple[int, int, bool]:
    """(rows, refused rows, whether it ended in an error)."""
    rows = skipped = 0
    sizes = {"block_bytes": [500, 1 << 21]} if form.header is not None else {"batch_rows": [7, 99]}
    options = {name: rng.choice(values) for name, values in sizes.items()}
    try:
        reader = open_dataset(form.dataset, path, bad_records="skip", **form.options, **options)
        for block in reader.raw_blocks():
            rows += reader.settle(reader.decode(block)).num_rows
            skipped = reader.rows_skipped
            assert reader.rows_in == rows + skipped, (reader.rows_in, rows, skipped)
    except (BadRecordError, ColumnMismatchError, CorruptShardError):
        return rows, skipped, True
    except ValueError as error:
        if len(form.files) == 1 or not any(words in str(error) for words in JOIN_ERRORS):
            raise
        return rows, skipped, True
    return rows, skipped, False


def fuzz(folder: Path, name: str, form: Form, seed: int, seconds: float) -> tuple[int, int, int, int]:
    """(reads, errors, rows, refused rows) of so many seconds."""
    totals = [0, 0, 0, 0]
    end = time.process_time() + seconds
    while time.process_time() < end or totals[0] < 10:
        rng = random.Random(f"{seed} {name} {totals[0]}")
        faulthandler.dump_traceback_later(READ_TIMEOUT_S, exit=True)
        try:
            path, expected = write_case(folder, name, form, rng)
            rows, skipped, failed = read(path, form, rng)
            assert failed or expected is None or rows + skipped == expected, (rows, skipped, expected)
        except BaseException:
            print(f"read {totals[0]} of {name}, seed {seed}:", file=sys.stderr, flush=True)
            raise
        totals = [a + b for a, b in zip(totals, (1, failed, rows, skipped), strict=True)]
    faulthandler.cancel_dump_traceback_later()
    return totals[0], totals[1], totals[2], totals[3]


def main() -> None:
    faulthandler.enable()
    root, seed, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    known = forms()
    for name in sys.argv[4:] or known:
        folder = root / name
        folder.mkdir()
        print(name, *fuzz(folder, name, known[name], seed, seconds), flush=True)


if __name__ == "__main__":
    main()
