"""What every method must keep to. A new method is tested by being in the table."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from infobatch.selection import METHODS, Statistics
from tests.selection.samples import everything

NAMES = sorted(METHODS)
SIZES = [1, 2, 3, 30]


def only(statistics: Statistics, needs: tuple[str, ...]) -> Statistics:
    """These fields and nothing else."""
    kept = {need: getattr(statistics, need) for need in needs}
    return Statistics(len(statistics), **kept)


def test_the_table_has_the_documented_names() -> None:
    assert list(METHODS) == [
        "ccs", "contextual-diversity", "craig", "d2", "deepfool", "dp", "dq", "el2n", "entropy",
        "facility-location", "forgetting", "glister", "grand", "graph-cut", "herding", "influence",
        "k-center", "least-confidence", "margin", "random", "tdds",
    ]  # fmt: skip


def test_the_docs_have_the_rows_of_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "selection.md").read_text()
    for name, method in METHODS.items():
        needs = ", ".join(method.needs) or "nothing"
        assert f"| `{name}` | {method.keeps} | {needs} | {method.paper} |" in page


@pytest.mark.parametrize("name", NAMES)
def test_a_row_says_all_there_is_to_know(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert method.paper
    assert method.cost
    assert method.keeps
    assert set(method.needs) <= {field.name for field in fields(Statistics)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_samples", SIZES)
@pytest.mark.parametrize("per_class", [False, True])
def test_as_many_different_samples_as_asked_for(
    name: str, num_samples: int, per_class: bool
) -> None:
    statistics = everything(num_samples)
    labels = statistics.labels if per_class else None
    for budget in {1, num_samples // 2, num_samples - 1, num_samples} - {0}:
        indices, weights = METHODS[name](statistics, budget, labels)
        assert indices.dtype == torch.int64
        assert len(set(indices.tolist())) == len(indices) == budget
        assert set(indices.tolist()) <= set(range(num_samples))
        if weights is not None:
            assert weights.shape == (budget,)
            assert (weights >= 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_it_looks_at_nothing_but_what_it_needs(name: str) -> None:
    statistics, method = everything(30), METHODS[name]
    with_all = method(statistics, 9)
    assert torch.equal(method(only(statistics, method.needs), 9).indices, with_all.indices)
    for need in method.needs:
        needs = tuple(other for other in method.needs if other != need)
        with pytest.raises(ValueError, match=f"statistics.{need} is None, expected it"):
            method(only(statistics, needs), 9)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_again_with_the_same_generator(name: str) -> None:
    statistics = everything(30)
    global_state = torch.get_rng_state()
    one, other = (
        METHODS[name](statistics, 9, statistics.labels, torch.Generator().manual_seed(5))
        for _ in range(2)
    )
    assert torch.equal(one.indices, other.indices)
    assert torch.equal(torch.get_rng_state(), global_state)


@pytest.mark.parametrize("name", NAMES)
def test_choosing_changes_no_statistics(name: str) -> None:
    statistics, before = everything(30), everything(30)
    METHODS[name](statistics, 9, statistics.labels)
    for field in fields(Statistics):
        now, then = getattr(statistics, field.name), getattr(before, field.name)
        if isinstance(now, torch.Tensor):
            assert torch.equal(now, then), field.name


@pytest.mark.parametrize("name", NAMES)
def test_each_class_keeps_its_part(name: str) -> None:
    statistics = replace(everything(60), labels=torch.tensor([0] * 30 + [1] * 20 + [2] * 10))
    indices = METHODS[name](statistics, 12, statistics.labels).indices
    assert statistics.require("labels")[indices].bincount().tolist() == [6, 4, 2]


@pytest.mark.parametrize("name", NAMES)
def test_per_class_with_one_class_is_over_all(name: str) -> None:
    statistics = everything(30)
    over_all = METHODS[name](statistics, 9, None, torch.Generator().manual_seed(1))
    one_class = METHODS[name](statistics, 9, [4] * 30, torch.Generator().manual_seed(1))
    assert torch.equal(over_all.indices, one_class.indices)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"random"}))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(name: str, bad: float) -> None:
    statistics = everything(30)
    for need in METHODS[name].needs:
        if need in ("labels", "correct", "changes", "validation"):
            continue  # whole numbers, NaN where there was no visit, statistics of their own
        values = getattr(statistics, need).clone()
        values[17] = bad
        with pytest.raises(ValueError, match=f"statistics.{need} is {bad} for sample 17"):
            METHODS[name](replace(statistics, **{need: values}), 9)


@pytest.mark.parametrize("name", NAMES)
def test_equal_samples_are_no_obstacle(name: str) -> None:
    one = everything(1)
    same = {
        field.name: torch.cat([value] * 12)
        for field in fields(Statistics)
        if isinstance(value := getattr(one, field.name), torch.Tensor)
    }
    statistics = Statistics(12, **same, validation=one.validation)
    assert len(set(METHODS[name](statistics, 7).indices.tolist())) == 7


@pytest.mark.parametrize("budget", [0, -1, 31])
def test_a_budget_that_cannot_be_met_is_refused(budget: int) -> None:
    with pytest.raises(ValueError, match=f"budget is {budget}, expected"):
        METHODS["random"](everything(30), budget)
    with pytest.raises(TypeError, match=r"budget is 0\.5, expected a whole number"):
        METHODS["random"](everything(30), 0.5)  # type: ignore[arg-type]


def test_labels_of_another_data_set_are_refused() -> None:
    with pytest.raises(ValueError, match="labels has 3 entries, expected one for each of the 30"):
        METHODS["random"](everything(30), 5, [0, 1, 2])


def test_quotas_divide_any_budget_as_evenly_as_whole_numbers_can() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        labels = rng.integers(0, 4, 40)
        sizes = np.bincount(labels, minlength=4)
        for budget in (1, 3, 17, 39, 40):
            indices = METHODS["random"](Statistics(40), budget, torch.from_numpy(labels)).indices
            shares = np.bincount(labels[indices.numpy()], minlength=4)
            assert shares.sum() == budget
            assert (np.abs(shares - budget * sizes / 40) < 1).all()
