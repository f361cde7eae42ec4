from __future__ import annotations

import pytest
import torch
from torch import Tensor

from infobatch.losses import per_sample, weighted_mean


def test_further_dimensions_are_averaged_per_sample() -> None:
    losses = torch.rand(4, 3, 5, 2)
    expected = [float(image.mean()) for image in losses]
    assert per_sample(losses).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_masked_places_are_left_out(dtype: torch.dtype) -> None:
    losses = torch.rand(5, 7)
    mask = torch.rand(5, 7) < 0.6
    mask[:, 0] = True
    expected = [float(row[kept].mean()) for row, kept in zip(losses, mask, strict=True)]
    assert per_sample(losses, mask.to(dtype)).tolist() == pytest.approx(expected)


def test_masked_places_may_hold_anything_and_get_no_gradient() -> None:
    losses = torch.tensor([[1.0, torch.nan], [3.0, 5.0]], requires_grad=True)
    mask = torch.tensor([[1, 0], [1, 1]])
    rows = per_sample(losses, mask)
    rows.sum().backward()
    assert rows.tolist() == [1.0, 4.0]
    assert losses.grad is not None
    assert losses.grad.tolist() == [[1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mask_does_not_lose_what_half_precision_cannot_hold(dtype: torch.dtype) -> None:
    losses = torch.full((2, 512, 512), 0.5, dtype=dtype)
    rows = per_sample(losses, torch.ones_like(losses))
    assert rows.dtype == dtype
    assert rows.tolist() == [0.5, 0.5]


def test_a_sample_without_any_place_has_loss_zero() -> None:
    assert per_sample(torch.ones(2, 3), torch.tensor([[0, 0, 0], [1, 1, 1]])).tolist() == [0.0, 1.0]


def test_the_gradient_of_each_sample_is_scaled_by_its_weight() -> None:
    losses = torch.rand(4, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 4.0, 0.0])
    weighted_mean(losses, weights).backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.25, 0.5, 1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_loss_keeps_its_dtype(dtype: torch.dtype) -> None:
    losses = torch.tensor([1.0, 3.0], dtype=dtype, requires_grad=True)
    loss = weighted_mean(losses, torch.tensor([2.0, 1.0]))
    loss.backward()
    assert loss.dtype == dtype
    assert float(loss.detach()) == 2.5
    assert losses.grad is not None
    assert losses.grad.dtype == dtype


def test_with_weights_of_one_the_mean_is_that_of_torch_bit_for_bit() -> None:
    losses = torch.rand(1001)
    assert torch.equal(weighted_mean(losses, torch.ones(1001)), losses.mean())


@pytest.mark.parametrize(
    ("losses", "mask", "error", "sentence"),
    [
        (0.5, None, TypeError, "losses is a float, expected a tensor"),
        (torch.tensor(0.5), None, ValueError, r'losses is a scalar.*reduction="none"'),
        (torch.tensor([1, 2]), None, TypeError, "losses has dtype torch.int64"),
        (torch.ones(2, dtype=torch.cfloat), None, TypeError, "losses has dtype torch.complex64"),
        (torch.ones(0), None, ValueError, r"losses has shape \(0,\)"),
        (torch.ones(2, 3), torch.ones(2), ValueError, r"mask is shaped \(2,\).*\(2, 3\)"),
        (torch.ones(2), [1, 0], ValueError, "mask is a list"),
    ],
)
def test_bad_losses_are_refused(
    losses: Tensor, mask: Tensor | None, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        per_sample(losses, mask)
