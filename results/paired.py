"""The difference between two files of runs, rule by rule, as a table in Markdown.

Runs are compared seed by seed, where both files have the same rule and the same settings. The
second example compares two fields of the same runs.

cd results/search-long-tail
python ../paired.py error-scores.jsonl runs.jsonl
python ../paired.py norms.jsonl:accuracy_recomputed norms.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

from infobatch_lab.metrics import ACCURACY
from infobatch_lab.settings import default_delta
from infobatch_lab.statistics import difference

SETTINGS = ("data", "rule", "prune_ratio", "delta", "model", "epochs", "batch_size", "lr", "shrink")
Key = tuple[object, ...]


def values_of(source: str) -> dict[Key, dict[int, float]]:
    """The accuracy of each seed, by settings: `values_of("runs.jsonl:accuracy_recomputed")`."""
    file, _, field = source.partition(":")
    values: dict[Key, dict[int, float]] = defaultdict(dict)
    for line in Path(file).read_text().splitlines():
        run = json.loads(line)
        values[tuple(run[name] for name in SETTINGS)][run["seed"]] = run[field or ACCURACY.name]
    return values


def main() -> None:
    one, other = map(values_of, sys.argv[1:])
    print("| rule | accuracy, % | difference, points (95 %) | seeds |")
    print("| --- | --: | --: | --: |")
    for key in (key for key in one if key in other):
        run = dict(zip(SETTINGS, key, strict=True))
        name = f"`{run['rule']}`" + (
            "" if run["delta"] == default_delta(run["data"]) else f", δ = {run['delta']:g}"
        )
        seeds = one[key].keys() & other[key].keys()
        found = difference(one[key], other[key], ACCURACY.margin)
        assert found.low is not None
        assert found.high is not None
        print(
            f"| {name} | {ACCURACY.text(mean(one[key][seed] for seed in seeds))} "
            f"| {ACCURACY.signed(found.mean)} ({ACCURACY.signed(found.low)} to "
            f"{ACCURACY.signed(found.high)}) | {len(seeds)} |"
        )


if __name__ == "__main__":
    main()
