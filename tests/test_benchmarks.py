"""The benchmark suite runs from end to end, and judges what it measures. How fast is not tested."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import SECTIONS, SMALL, main
from benchmarks.numpy_scripts import SCRIPTS
from benchmarks.planning import after_first_epoch, plan_once
from benchmarks.scale import agreed_order_statistic, sharded_section
from benchmarks.selection import OURS, clustered, numpy_k_center, submodlib_peers
from benchmarks.selection import SCRIPTS as SELECTION_SCRIPTS
from benchmarks.table import Aim, Row, Section, as_markdown, as_text, in_words
from benchmarks.timing import exponential
from infobatch.rules import RULES
from infobatch.selection import METHODS, Statistics


def test_all_of_it_in_small_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--small", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    page = (tmp_path / "RESULTS.md").read_text()
    sections = json.loads((tmp_path / "results.json").read_text())["sections"]
    assert list(sections) == list(SECTIONS) == list(SMALL)
    for section in sections.values():
        assert section["title"] in printed
        assert section["title"] in page
        for row in section["rows"]:
            assert np.isfinite([row["ours"], *row["others"].values()]).all()
            assert row["what"] in page
    assert (tmp_path / "growth.png").stat().st_size > 1000


def test_steps_of_many_ranks_wait_for_no_collective(tmp_path: Path) -> None:
    counts = {row.what.split(",")[0]: row for row in SMALL["merge"]().rows}
    assert counts["collectives in steps"].ours == 0
    assert counts["collectives"].ours > 0  # those that are made are noticed


def test_shards_agree_on_what_all_scores_would_give() -> None:
    """The design of docs/scale.md: thresholds, equal steps and weights without all the scores."""
    of = {row.what: row.ours for row in sharded_section(30_000, num_shards=7).rows}
    assert of["relative error of the mean"] < 1e-12
    assert of["error of the 85 % quantile"] == 0
    assert of["most kept less fewest kept"] == 0
    assert of["mean weight"] == pytest.approx(1, abs=1e-6)
    assert 0 <= of["kept beyond the mean rule"] < 5


@pytest.mark.parametrize("place", [0, 1, 499, 999])
def test_an_order_statistic_from_histograms_is_exact(place: int) -> None:
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    shards = [values[:10], values[10:400], values[400:]]
    assert agreed_order_statistic(shards, place) == np.sort(values)[place]


def test_a_section_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plans"])
    assert "no such section: plans" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_the_rule_does(name: str) -> None:
    """Else it would be no comparison."""
    scores = exponential(10_000)
    rule = RULES[name]()
    plan = plan_once(rule, scores, after_first_epoch(rule, scores))
    indices, weights = SCRIPTS[name](scores.numpy(), np.random.default_rng(0))
    assert len(np.unique(indices)) == len(indices) == len(weights)
    assert len(indices) == pytest.approx(len(plan), abs=3)
    assert weights.sum() == pytest.approx(float(plan.weights.sum()), rel=1e-3)
    kept, kept_by_rule = scores.numpy()[indices], scores[plan.indices].numpy()
    for quantile in (0.1, 0.5, 0.9):
        assert np.quantile(kept, quantile) == pytest.approx(
            np.quantile(kept_by_rule, quantile), abs=0.1
        )


@pytest.mark.parametrize("name", OURS)
def test_a_script_chooses_what_the_method_chooses(name: str) -> None:
    features = clustered(300, 16)
    ours = OURS[name](features, 30).tolist()
    script = numpy_k_center if name == "k-center" else SELECTION_SCRIPTS[name]
    start = {"start": ours[0]} if name == "k-center" else {}
    assert script(features.numpy(), 30, **start) == ours


def test_the_peers_choose_what_we_choose() -> None:
    features = clustered(300, 16)
    peers = submodlib_peers()
    if not peers:
        pytest.skip("submodlib is not installed")
    assert peers["graph-cut"](features.numpy(), 30) == OURS["graph-cut"](features, 30).tolist()
    ours = METHODS["facility-location"](Statistics(features=features), 30).indices
    assert peers["facility-location"](features.numpy(), 30) == ours.tolist()


def test_an_aim_is_judged_as_a_ratio_or_as_a_value() -> None:
    def verdict(aim: Aim | None, ours: float = 3.0) -> str:
        return Row("it", ours, "s", {"theirs": 2.0}, aim).verdict

    assert verdict(None) == ""
    assert verdict(Aim(1.5, "theirs")) == "met"
    assert verdict(Aim(1.4, "theirs")) == "MISSED"
    assert verdict(Aim(3.0)) == "met"
    assert verdict(Aim(2.9)) == "MISSED"
    assert verdict(Aim(3.0, at_least=True)) == "met"
    assert verdict(Aim(3.1, at_least=True)) == "MISSED"


def test_a_table_has_a_column_for_all_that_is_compared() -> None:
    section = Section(
        "Times",
        "How.",
        [
            Row("a", 0.002, "s", {"sort": 0.001}),
            Row("b", 2e-6, "s", {"randperm": 1e-6}, Aim(1.0, "randperm")),
        ],
    )
    assert as_markdown(section) == (
        "## Times\n\nHow.\n\n"
        "|  | ours | of sort | of randperm | aim |  |\n"
        "| --- | --: | --: | --: | --: | --: |\n"
        "| a | 2 ms | 2.00 x |  |  |  |\n"
        "| b | 2 us |  | 2.00 x | <= 1 x randperm | MISSED |\n"
    )
    assert as_text(section).splitlines()[2] == "a  2 ms   2.00 x"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [(1.5, "s", "1.5 s"), (0.1234, "s", "123 ms"), (4e-7, "s", "0.4 us"), (25.04, "B", "25.0 B")],
)
def test_figures_in_words(value: float, unit: str, words: str) -> None:
    assert in_words(value, unit) == words
