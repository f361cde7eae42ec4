"""What real training loops add to a step: scores and weights stay right in all of them.

Every loop is compared with a plain one: a sample at a time, in float32, without the library but for
the epoch's plan.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.amp import GradScaler
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset

import infobatch
from infobatch import InfoBatch, Plan, Pruner

BATCH = 16
LEARNING_RATE = 0.5
BOTH_LOADERS = pytest.mark.parametrize("kind", ["stock", "ours"])


class Points(Dataset[tuple[Tensor, int, int]]):
    """A small noisy classification task. An item says which sample it is, for the tests to see."""

    def __init__(self, num_samples: int = 120) -> None:
        self.x = torch.randn(num_samples, 5)
        self.y = (self.x @ torch.randn(5) + 0.5 * torch.randn(num_samples) > 0).long().tolist()

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        return self.x[index], self.y[index], index

    def __len__(self) -> int:
        return len(self.y)


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, reduction="none")


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Other than cross entropy, autocast leaves this one in half precision."""
    return (outputs - nn.functional.one_hot(y, 2)).square().mean(1)


class Training:
    """A model, its data and its loader; `epochs()` holds each pruned epoch against a plain loop."""

    def __init__(self, kind: str) -> None:
        self.points = Points()
        self.data = InfoBatch(self.points, num_epochs=10)
        self.loader: Any
        if kind == "ours":
            self.loader = infobatch.DataLoader(self.data, batch_size=BATCH)
        else:
            self.loader = DataLoader(self.data, batch_size=BATCH, sampler=self.data.sampler)
        self.model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)
        self.losses = torch.empty(len(self.points))
        """Of each sample, what the loop has seen last."""

    def note(self, indices: Tensor, losses: Tensor) -> None:
        self.losses[indices] = losses.detach().float()

    def epochs(
        self,
        plain_epoch: Callable[[PlainLoop, Sequence[Tensor]], None],
        *,
        tolerance: float = 1e-5,
    ) -> Iterator[int]:
        """Four epochs to train, the first in full and three pruned; compares each at its end."""
        for epoch in range(4):
            plan, before = self.data.plan, self.data.scores
            plain = PlainLoop(copy.deepcopy(self.model), self.points, plan)
            yield epoch
            assert self.data.epoch == epoch + 1
            assert self.data.savings.num_full == len(self.points) * (epoch + 1)
            assert (plan.num_pruned > 10) == (plan.weights.max() > 1.5) == (epoch > 0)
            plain_epoch(plain, plan.indices.split(BATCH))
            # Exactly the losses that the loop had in its hands, and only of what was trained.
            expected = before.clone()
            expected[plan.indices] = self.losses[plan.indices]
            assert torch.equal(self.data.scores, expected)
            # And these are the losses, and this is the training, that a plain loop arrives at.
            expected[plan.indices] = plain.losses[plan.indices]
            assert_close(self.data.scores, expected, rtol=tolerance, atol=tolerance)
            assert_close(flat(self.model), flat(plain.model), rtol=tolerance, atol=tolerance)


def flat(model: nn.Module) -> Tensor:
    """All parameters, as one vector of their own."""
    return parameters_to_vector(model.parameters()).detach().clone()


class PlainLoop:
    """The slow and obvious way, with the weights looked up in the plan."""

    def __init__(self, model: nn.Module, points: Points, plan: Plan) -> None:
        self.model, self.points = model, points
        self.criterion: Callable[[Tensor, Tensor], Tensor] = cross_entropy
        self.weight_of: dict[int, float] = dict(
            zip(plan.indices.tolist(), plan.weights.tolist(), strict=True)
        )
        self.losses = torch.full((len(points),), torch.nan)

    def gradient(self, indices: Tensor) -> Tensor:
        total = torch.zeros(())
        for index in indices.tolist():
            x, y, _ = self.points[index]
            [loss] = self.criterion(self.model(x[None]), torch.tensor([y]))
            total = total + self.weight_of[index] * loss / len(indices)
            self.losses[index] = loss.detach()
        gradients = torch.autograd.grad(total, list(self.model.parameters()))
        return parameters_to_vector(gradients)

    def move(self, by: Tensor) -> None:
        vector_to_parameters(flat(self.model) + by, self.model.parameters())

    def train(self, batches: Sequence[Tensor]) -> None:
        for indices in batches:
            self.move(-LEARNING_RATE * self.gradient(indices))


# Mixed precision ---------------------------------------------------------------------------------


@BOTH_LOADERS
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("criterion", [cross_entropy, squared_error])
def test_autocast(kind: str, inside: bool, criterion: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`update` may stand inside or after it; a loss that autocast left in bf16 is fine too."""
    training = Training(kind)

    def plain_epoch(plain: PlainLoop, batches: Sequence[Tensor]) -> None:
        plain.criterion = criterion
        plain.train(batches)

    # bf16 has 8 bits; without the weights, scores would be off by 0.1 to 0.2 here.
    for _ in training.epochs(plain_epoch, tolerance=0.02):
        for x, y, indices in training.loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                outputs = training.model(x)
                losses = criterion(outputs, y)
                if inside:
                    loss = training.data.update(losses)
            if not inside:
                loss = training.data.update(losses)
            training.note(indices, losses)
            assert outputs.dtype == torch.bfloat16
            assert loss.dtype == losses.dtype
            training.optimizer.zero_grad()
            loss.backward()
            training.optimizer.step()


def step_or_skip(scaler: GradScaler, training: Training) -> bool:
    """Whether the scaler skipped the step; then the model stands where it stood."""
    before, scale = flat(training.model), scaler.get_scale()
    scaler.step(training.optimizer)
    scaler.update()
    skipped = scaler.get_scale() < scale
    assert torch.equal(flat(training.model), before) == skipped
    return skipped


@BOTH_LOADERS
def test_steps_that_a_grad_scaler_skips(kind: str) -> None:
    """The losses of a skipped step are losses like others: recorded, and the epoch goes on."""
    training = Training(kind)
    skipped: list[bool]

    def plain_epoch(plain: PlainLoop, batches: Sequence[Tensor]) -> None:
        for indices, skip in zip(batches, skipped, strict=True):
            gradient = plain.gradient(indices)
            if not skip:
                plain.move(-LEARNING_RATE * gradient)

    for _ in training.epochs(plain_epoch, tolerance=5e-3):
        skipped = []
        # Too large for fp16 at first, and soon not any more.
        scaler = GradScaler("cpu", init_scale=2.0**22, backoff_factor=2.0**-4)
        for x, y, indices in training.loader:
            with torch.autocast("cpu", dtype=torch.float16):
                losses = cross_entropy(training.model(x), y)
                loss = training.data.update(losses)
            training.note(indices, losses)
            training.optimizer.zero_grad()
            scaler.scale(loss).backward()
            skipped.append(step_or_skip(scaler, training))
        assert True in skipped
        assert False in skipped


@BOTH_LOADERS
def test_a_loss_that_is_not_finite_skips_its_step_and_its_sample_is_kept(kind: str) -> None:
    """In fp16 a large input overflows: the scaler skips the step, the score of one is unknown."""
    training = Training(kind)
    data, scaler = training.data, GradScaler("cpu", init_scale=2.0**8)
    for epoch in range(3):
        plan = data.plan
        if epoch == 1:
            bad = int(plan.indices[plan.weights > 1][0])  # a low one, that might be skipped next
            training.points.x[bad] = 1e5
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for x, y, indices in training.loader:
                with torch.autocast("cpu", dtype=torch.float16):
                    losses = cross_entropy(training.model(x), y)
                    loss = data.update(losses)
                training.note(indices, losses)
                training.optimizer.zero_grad()
                scaler.scale(loss).backward()
                overflows = epoch > 0 and bad in indices
                assert bool(losses.isfinite().all()) != overflows
                assert step_or_skip(scaler, training) == overflows
        assert data.epoch == epoch + 1
        assert data.num_nonfinite == epoch  # in epochs 1 and 2, each time
        if epoch == 0:
            assert not caught
            continue
        [warning] = caught
        assert f"1 losses of epoch {epoch} are NaN or infinite" in str(warning.message)
        assert warning.filename == __file__
        trained = plan.indices[plan.indices != bad]
        assert data.scores.isnan().nonzero().flatten().tolist() == [bad]
        assert torch.equal(data.scores[trained], training.losses[trained])
        assert data.plan.threshold == pytest.approx(float(data.scores.double().nanmean()))
        assert data.plan.weights[data.plan.indices == bad].tolist() == [1.0]
        assert data.plan.num_pruned > 10


# Accumulation ------------------------------------------------------------------------------------


@BOTH_LOADERS
def test_several_batches_per_step_of_the_optimizer(kind: str) -> None:
    """What is left at an epoch's end is stepped too."""
    training, accumulate, left_over = Training(kind), 5, []

    def plain_epoch(plain: PlainLoop, batches: Sequence[Tensor]) -> None:
        for first in range(0, len(batches), accumulate):
            gradients = [plain.gradient(batch) for batch in batches[first : first + accumulate]]
            plain.move(-LEARNING_RATE * torch.stack(gradients).sum(0) / accumulate)

    for _ in training.epochs(plain_epoch):
        num_batches = len(training.loader)  # the last update turns to the next epoch's
        left_over.append(num_batches % accumulate)
        training.optimizer.zero_grad()
        for number, (x, y, indices) in enumerate(training.loader, start=1):
            losses = cross_entropy(training.model(x), y)
            training.note(indices, losses)
            (training.data.update(losses) / accumulate).backward()
            if number % accumulate == 0 or number == num_batches:
                training.optimizer.step()
                training.optimizer.zero_grad()
    assert all(left_over)


@BOTH_LOADERS
def test_micro_batches_of_one_batch(kind: str) -> None:
    training = Training(kind)
    for _ in training.epochs(PlainLoop.train):
        for x, y, indices in training.loader:
            training.optimizer.zero_grad()
            for part in torch.arange(len(y)).split(7):
                losses = cross_entropy(training.model(x[part]), y[part])
                training.note(indices[part], losses)
                (training.data.update(losses) * len(part) / len(y)).backward()
            training.optimizer.step()


# torch.compile -----------------------------------------------------------------------------------

# torch.compile hides this warning itself, but not where warnings are made errors, as they are here.
MAY_BREAK_THE_GRAPH = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

NUM_SIZES = 3
"""A graph for whole batches, one for any size (of the last batch), maybe one for a size of 1."""


@pytest.fixture
def backend() -> Iterator[CompileCounterWithBackend]:
    """Compiles without a C++ compiler, and counts the graphs."""
    torch.compiler.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch.compiler.set_stance("default")
    torch.compiler.reset()


def all_is_compiled_from(epoch: int) -> None:
    """Two epochs show all there is to compile; from then on torch refuses to compile anything."""
    if epoch == 2:
        torch.compiler.set_stance("fail_on_recompile")


@pytest.mark.slow
@BOTH_LOADERS
def test_a_compiled_model(kind: str, backend: CompileCounterWithBackend) -> None:
    training = Training(kind)
    model = torch.compile(training.model, backend=backend, fullgraph=True)
    for epoch in training.epochs(PlainLoop.train):
        all_is_compiled_from(epoch)
        for x, y, indices in training.loader:
            losses = cross_entropy(model(x), y)
            training.note(indices, losses)
            training.optimizer.zero_grad()
            training.data.update(losses).backward()
            training.optimizer.step()
    assert 1 <= backend.frame_count <= NUM_SIZES


@pytest.mark.slow
@MAY_BREAK_THE_GRAPH
@pytest.mark.parametrize("kind", ["stock", "ours", "indices"])
def test_a_compiled_step(kind: str, backend: CompileCounterWithBackend) -> None:
    """`update` breaks the graph in one place, and is not compiled itself, at any step."""
    training = Training(kind)
    data = training.data

    def step(x: Tensor, y: Tensor, indices: Tensor) -> Tensor:
        losses = cross_entropy(training.model(x), y)
        loss = data.update(losses, indices if kind == "indices" else None)
        loss.backward()
        return losses

    compiled = torch.compile(step, backend=backend)
    for epoch in training.epochs(PlainLoop.train):
        all_is_compiled_from(epoch)
        for x, y, indices in training.loader:
            training.optimizer.zero_grad()
            training.note(indices, compiled(x, y, indices))
            training.optimizer.step()
    assert 1 <= backend.frame_count <= NUM_SIZES


@pytest.mark.slow
def test_a_warning_of_a_compiled_step_names_the_line_of_the_user(
    backend: CompileCounterWithBackend,
) -> None:
    pruner = Pruner(4, num_epochs=2)
    step = torch.compile(lambda losses: pruner.update(losses * 1, torch.arange(4)), backend=backend)
    with pytest.warns(RuntimeWarning, match="1 losses of epoch 0") as caught:
        step(torch.tensor([1.0, torch.nan, 2.0, 3.0]))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.slow
@MAY_BREAK_THE_GRAPH
@BOTH_LOADERS
def test_a_compiled_step_that_weighs_for_itself(
    kind: str, backend: CompileCounterWithBackend
) -> None:
    training = Training(kind)

    def step(x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(training.model(x), y)
        training.data.update(losses)
        (losses * training.data.batch_weights).mean().backward()
        return losses

    compiled = torch.compile(step, backend=backend)
    for epoch in training.epochs(PlainLoop.train):
        all_is_compiled_from(epoch)
        for x, y, indices in training.loader:
            training.optimizer.zero_grad()
            training.note(indices, compiled(x, y))
            training.optimizer.step()
    assert 1 <= backend.frame_count <= 2 * NUM_SIZES  # before and after update


# Two passes over a batch -------------------------------------------------------------------------


@BOTH_LOADERS
def test_sharpness_aware_minimisation(kind: str) -> None:
    """The first pass is reported; the second, at other parameters, weighs with `batch_weights`."""
    training, radius = Training(kind), 0.1
    parameters = list(training.model.parameters())

    def plain_epoch(plain: PlainLoop, batches: Sequence[Tensor]) -> None:
        for indices in batches:
            uphill = plain.gradient(indices)
            uphill *= radius / uphill.norm()
            losses = plain.losses.clone()
            plain.move(uphill)
            gradient = plain.gradient(indices)
            plain.move(-uphill - LEARNING_RATE * gradient)
            plain.losses = losses

    for _ in training.epochs(plain_epoch):
        for x, y, indices in training.loader:
            losses = cross_entropy(training.model(x), y)
            training.note(indices, losses)
            training.optimizer.zero_grad()
            training.data.update(losses).backward()
            here = flat(training.model)
            uphill = parameters_to_vector([p.grad for p in parameters if p.grad is not None])
            vector_to_parameters(here + radius * uphill / uphill.norm(), parameters)
            training.optimizer.zero_grad()
            again = cross_entropy(training.model(x), y)
            (again * training.data.batch_weights).mean().backward()
            vector_to_parameters(here, parameters)
            training.optimizer.step()
