from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from infobatch import Pruner
from infobatch.rules import RULES
from infobatch_lab.errors import UserError
from infobatch_lab.scores_file import plan_for, read_scores

SCORES = [0.25, 4.0, np.nan, 1.5, 1e-3, 2.0]


def write_npy(path: Path) -> None:
    np.save(path, np.array(SCORES, dtype=np.float64))


def write_npz(path: Path) -> None:
    np.savez_compressed(path, names=np.arange(len(SCORES)), score=np.array(SCORES))


def write_only_npz(path: Path) -> None:
    np.savez(path, losses=np.array(SCORES, dtype=np.float32))


def write_csv(path: Path) -> None:
    rows = [f'"{n}, x",{"" if np.isnan(score) else score}' for n, score in enumerate(SCORES)]
    path.write_text("\n".join(["name,score", *rows]))


def write_bare_csv(path: Path) -> None:
    path.write_text("".join(f"{score}\n" for score in SCORES))


def write_parquet(path: Path) -> None:
    scores = [None if np.isnan(score) else score for score in SCORES]
    names = [str(number) for number in range(len(SCORES))]
    pyarrow.parquet.write_table(pa.table({"name": names, "score": scores}), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.npy", write_npy),
        ("a.npz", write_npz),
        ("b.npz", write_only_npz),
        ("a.csv", write_csv),
        ("b.csv", write_bare_csv),
        ("a.parquet", write_parquet),
    ],
)
def test_scores_are_read_from_every_format(tmp_path: Path, name: str, write: object) -> None:
    assert callable(write)
    write(tmp_path / name)
    assert np.array_equal(
        read_scores(tmp_path / name).numpy(), np.array(SCORES, np.float32), equal_nan=True
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_plan_is_the_one_that_training_would_draw(tmp_path: Path, rule: str) -> None:
    scores = np.random.default_rng(0).exponential(size=1000).astype(np.float32)
    np.save(tmp_path / "a.npy", scores)
    facts = plan_for(tmp_path / "a.npy", rule=rule, seed=3)
    pruner = Pruner(1000, 5, delta=1, rule=rule, seed=3)
    for indices in pruner.plan.indices.split(100):
        pruner.update(pruner.scores.new_tensor(scores[indices.numpy()]), indices)
    assert facts["num_kept"] == len(pruner.plan)
    assert facts["num_pruned"] == pruner.plan.num_pruned
    assert facts["threshold"] == pruner.plan.threshold
    total = sum(weight * count for weight, count in facts["weights"])
    assert total == pytest.approx(float(pruner.plan.weights.sum()))
    takes_five_visits = rule == "ies"
    assert (facts["num_pruned"] == 0) == (rule == "full" or takes_five_visits)


def test_missing_and_infinite_scores_are_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1.0, 1.0, 9.0, np.nan, np.inf, -np.inf]))
    facts = plan_for(tmp_path / "a.npy", prune_ratio=0.5)
    assert (facts["num_unseen"], facts["num_kept"], facts["num_pruned"]) == (3, 5, 1)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.npy", None, "does not exist"),
        ("a.txt", b"1\n2\n", r"is none of \.npy, \.npz, \.csv, \.parquet"),
        ("a.npy", b"not an array", "cannot be read as .npy"),
        ("a.parquet", b"PAR1", "cannot be read as .parquet"),
        ("a.csv", b"", "cannot be read as .csv: it is empty"),
        ("a.csv", b"score\n1.0\nhigh\n", "cannot be read as .csv"),
        ("a.csv", b"a,b\n1,2\n", "has no column 'score': name one of a, b with --column"),
        ("a.csv", b"a,score\n1,2\n3\n", "cannot be read as .csv: row 2 has no field 2"),
        ("a.csv", b"a,score\n5\n6,7\n", "cannot be read as .csv: row 1 has no field 2"),
        ("a.csv", b"score\n", "expected one number per sample"),
    ],
)
def test_a_file_that_is_none_is_one_sentence(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_scores(tmp_path / name)


def test_arrays_of_other_shapes_or_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.ones((2, 3)))
    with pytest.raises(UserError, match=r"holds float64 of shape \(2, 3\)"):
        read_scores(tmp_path / "wide.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read"):
        read_scores(tmp_path / "objects.npy")


def test_a_ratio_out_of_range_is_the_sentence_of_the_library(tmp_path: Path) -> None:
    write_npy(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"prune_ratio is 1\.5, expected 0 <= prune_ratio < 1"):
        plan_for(tmp_path / "a.npy", prune_ratio=1.5)
    with pytest.raises(UserError, match="rule is 'median', expected a Rule or one of above"):
        plan_for(tmp_path / "a.npy", rule="median")
