from __future__ import annotations

import pytest
import torch
from torch import Tensor

from infobatch.groups import Groups, Probabilities


def test_both_kinds_know_how_many_samples_they_are_for_and_whether_they_prune() -> None:
    of = torch.tensor([0, 1, 1], dtype=torch.uint8)
    assert Groups(of, (1.0, 0.5)).num_samples == Probabilities(torch.ones(3)).num_samples == 3
    assert Groups(of, (1.0, 0.5)).prunes
    assert not Groups(of, (1.0, 1.0)).prunes
    assert Probabilities(torch.tensor([1.0, 0.5])).prunes
    assert not Probabilities(torch.ones(2)).prunes


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_probabilities_may_be_any_floating_point_numbers(dtype: torch.dtype) -> None:
    probabilities = Probabilities(torch.tensor([0.5, 1.0], dtype=dtype))
    probabilities.check()
    assert probabilities.p.dtype == torch.float32
    assert probabilities.p.tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (torch.tensor([0.5, torch.nan]), "p runs from nan to nan"),
        (torch.tensor([0.5, torch.inf]), "p runs from 0.5 to inf"),
        (torch.tensor([-0.5, 0.5]), "p runs from -0.5 to 0.5"),
        (torch.tensor([0.5, 1.5]), "p runs from 0.5 to 1.5"),
        (torch.tensor([0.0, 0.5]), "p runs from 0.0 to 0.5"),
        (torch.tensor([1e-42, 0.5]), r"p runs from 1\S+e-42 to 0.5"),  # 1/p would be infinite
        (torch.tensor([0, 1]), "p has dtype torch.int64 and 1 dimensions"),
        (torch.ones(2, 2), "p has dtype torch.float32 and 2 dimensions"),
    ],
)
def test_what_is_no_probability_is_refused(p: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Probabilities(p).check()


def test_without_rescaling_a_sample_may_have_no_chance() -> None:
    Probabilities(torch.tensor([0.0, 0.5]), rescale=False).check()
