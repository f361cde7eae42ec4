"""Measure, print, and write RESULTS.md, results.json and growth.png.

    python -m benchmarks                    # everything, about twenty-five minutes
    python -m benchmarks plan step          # some sections; writes nothing unless told where,
                                            # and there puts them in the place of older ones
    python -m benchmarks --small --out /tmp # sizes for a trial

Times are judged as ratios only: what is compared takes turns in one run, and the best counts.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks import (
    checkpoints,
    epochs,
    growth,
    memory,
    merging,
    planning,
    scale,
    selection,
    steps,
    training,
)
from benchmarks.table import Section, as_markdown, as_text
from infobatch_lab.provenance import commit, processor

SECTIONS: dict[str, Callable[[], Section]] = {
    "plan": planning.section,
    "table-11": planning.table_11,
    "step": steps.section,
    "epoch": epochs.section,
    "memory": memory.section,
    "merge": merging.section,
    "checkpoint": checkpoints.section,
    "training": training.section,
    "growth": growth.section,
    "shards": scale.sharded_section,
    "selection": selection.section,
}
SMALL: dict[str, Callable[[], Section]] = {
    "plan": lambda: planning.section([2_000]),
    "table-11": lambda: planning.table_11([2_000]),
    "step": lambda: steps.section([32], num_steps=20),
    "epoch": lambda: epochs.section([2_000]),
    "memory": lambda: memory.section([100_000], huge=100_000),
    "merge": lambda: merging.section([4_000], ranks=[2], turns=1),
    "checkpoint": lambda: checkpoints.section([2_000]),
    "training": lambda: training.section(num_epochs=3, turns=1),
    "growth": lambda: growth.section([1_000, 2_000]),
    "shards": lambda: scale.sharded_section(20_000, 4),
    "selection": lambda: selection.section(3_000, 16, 300, per_class_size=400, num_classes=4),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--small", action="store_true", help="sizes for a trial")
    parser.add_argument("--out", type=Path, help="the folder to write to [all of it: benchmarks]")
    options = parser.parse_args(arguments)
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    out = options.out
    if out is None and not options.sections and not options.small:
        out = Path(__file__).parent
    measured = {}
    for name in options.sections or SECTIONS:
        measured[name] = (SMALL if options.small else SECTIONS)[name]()
        print(as_text(measured[name]), end="\n\n", flush=True)
    if out is not None:
        write(measured, out, is_small=options.small)
        print(f"written to {out / 'RESULTS.md'}")


def write(measured: dict[str, Section], out: Path, *, is_small: bool) -> None:
    """The page, the figures, the picture. Sections that were measured before stay as they are."""
    out.mkdir(parents=True, exist_ok=True)
    machine = {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    raw = out / "results.json"
    before = json.loads(raw.read_text()) if raw.exists() else {}
    sections = before["sections"] if before.get("machine") == machine else {}
    sections |= {name: {"commit": commit(), **of.as_json()} for name, of in measured.items()}
    sections = {name: sections[name] for name in SECTIONS if name in sections}
    raw.write_text(json.dumps({"machine": machine, "sections": sections}, indent=1) + "\n")
    all_of_it = {name: Section.from_json(found) for name, found in sections.items()}
    if all_of_it.keys() >= scale.MODELLED and not is_small:
        all_of_it["model"] = scale.model_section(all_of_it)
    (out / "RESULTS.md").write_text(page(all_of_it, machine))
    if "growth" in measured:
        growth.picture(measured["growth"], out / "growth.png")


def page(measured: dict[str, Section], machine: dict[str, object]) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine.items())
    judged = [row for section in measured.values() for row in section.rows if row.aim]
    num_met = sum(row.is_met is True for row in judged)
    text = (
        "# Benchmarks\n\n    make bench\n\n"
        "Ratios count, absolute times are those of one machine: what is compared took turns in one "
        f"run, and the best turn of each is shown. {num_met} of {len(judged)} aims are met; "
        "where one is missed, [docs/scale.md](../docs/scale.md#what-misses-its-aim) says why.\n\n"
        f"{facts}. Raw figures: [results.json](results.json).\n\n"
    )
    text += "\n".join(as_markdown(section) for section in measured.values())
    if "growth" in measured:
        text += "\n![Seconds to plan an epoch against the number of samples](growth.png)\n"
    return text


if __name__ == "__main__":
    main()
