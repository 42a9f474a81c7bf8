"""The four published files of Taobao Display Ad, taken apart from the joined sample of real rows."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path

ADS = ("adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price")
PROFILES = (
    "userid", "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level",
    "occupation", "new_user_class_level",
)  # fmt: skip
CHINA = datetime.timezone(datetime.timedelta(hours=8))


def seconds_of(text: str) -> int:
    return int(datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=CHINA).timestamp())


def real_samples(shared_data: Path) -> list[dict[str, str]]:
    """The 200 joined rows, as text; those of an ad or user that has other values further up are left out."""
    rows, ads, users = [], {}, {}
    for name in ("fuxictr_tiny_train.csv", "fuxictr_tiny_test.csv"):
        with (shared_data / "taobao_display_ad" / name).open() as file:
            for row in csv.DictReader(file):
                ad, user = tuple(row[c] for c in ADS), tuple(row[c] for c in PROFILES)
                if ads.setdefault(ad[0], ad) == ad and users.setdefault(user[0], user) == user:
                    rows.append(row)
    return rows


def write_files(folder: Path, rows: list[dict[str, str]], *, without_profile: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """raw_sample.csv, ad_feature.csv and user_profile.csv by the published layout; brands that miss are NULL."""
    folder.mkdir(parents=True, exist_ok=True)
    samples = ["user,time_stamp,adgroup_id,pid,nonclk,clk"]
    for r in rows:
        nonclk = 1 - int(r["clk"])
        samples.append(f"{r['userid']},{seconds_of(r['time_stamp'])},{r['adgroup_id']},{r['pid']},{nonclk},{r['clk']}")
    ads = {r["adgroup_id"]: ",".join(r[c] or "NULL" for c in ADS) for r in rows}
    users = {r["userid"]: ",".join(r[c] for c in PROFILES) for r in rows if r["userid"] not in without_profile}
    (folder / "raw_sample.csv").write_text("\n".join(samples) + "\n")
    (folder / "ad_feature.csv").write_text("\n".join([",".join(ADS), *ads.values()]) + "\n")
    header = ",".join(PROFILES) + " "  # the blank is in the published file
    (folder / "user_profile.csv").write_text("\n".join([header, *users.values()]) + "\n")
