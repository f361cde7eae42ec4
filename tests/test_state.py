"""A run's state: checkpoints of this run go on, all others are refused and change nothing."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from infobatch import OrderError, Pruner, StateError
from infobatch.distributed import no_losses
from infobatch.rules import UCB, Mean, Rule, Until
from infobatch.state import Settings
from tests.checkpoints import write
from tests.conftest import every_rule, loss_of, same_state

NUM_SAMPLES, BATCH = 40, 6
RULES = ["mean", "ucb", "every-mean"]
RULE_OF = every_rule(NUM_SAMPLES)
State = dict[str, Any]


def make(rule: str = "mean", **settings: Any) -> Pruner:
    return Pruner(NUM_SAMPLES, rule=RULE_OF[rule], **{"num_epochs": 8, **settings})


def train(pruner: Pruner, num_epochs: int, num_batches: int = 0) -> list[str]:
    """Train whole epochs by index, then so many batches; returns the plans."""
    plans = []
    for _ in range(num_epochs):
        plans.append(pruner.plan.fingerprint)
        done, epoch = pruner.num_reported, pruner.epoch
        for samples in pruner.plan.indices[done:].split(BATCH):
            pruner.update(loss_of(samples, epoch), samples)
    for samples in pruner.plan.indices.split(BATCH)[:num_batches]:
        pruner.update(loss_of(samples, pruner.epoch), samples)
    return plans


def trained(rule: str, place: str) -> Pruner:
    """A run at the start of epoch 2, or in the middle of it."""
    return copy.deepcopy(_trained(rule, place))


@cache
def _trained(rule: str, place: str) -> Pruner:
    pruner = make(rule)
    train(pruner, 2, num_batches=2 if place == "middle" else 0)
    assert (pruner.state_dict()["losses"] != b"-") == (place == "middle")
    return pruner


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        (UCB(c=2.0), "UCB(prune_ratio=0.5, c=2, alpha=0.8)"),
        (UCB(c=1e-5), "UCB(prune_ratio=0.5, c=0.00001, alpha=0.8)"),
        (Until(Mean(), 7.0), f"Until(rule={Mean()!r}, until=7)"),
    ],
)
def test_a_rule_is_known_again_by_the_values_of_its_numbers(rule: Rule, written: str) -> None:
    """Older versions wrote them as they were given."""
    pruner = Pruner(NUM_SAMPLES, 8, rule=rule)
    pruner.load_state_dict({**pruner.state_dict(), "rule": written})
    with pytest.raises(StateError, match="resume with the same rule"):
        pruner.load_state_dict({**pruner.state_dict(), "rule": f"{written[:-1]}5)"})


def refusal_of(pruner: Pruner, state: object) -> str:
    """The sentence with which a state is refused, and nothing is changed."""
    before = copy.deepcopy(pruner.state_dict())
    twin = copy.deepcopy(pruner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StateError) as caught:
            pruner.load_state_dict(state)  # type: ignore[arg-type]
    assert same_state(pruner.state_dict(), before)
    # Training goes on as if nothing had happened.
    assert train(pruner, 1) == train(twin, 1)
    assert same_state(pruner.state_dict(), twin.state_dict())
    return str(caught.value)


def check_is_one_sentence(message: str) -> None:
    assert "\n" not in message
    assert message.endswith(".")
    assert ". " not in message
    assert len(message) < 400


# Hostile states ----------------------------------------------------------------------------------

Hostile = Callable[[State], object]
FIELDS = sorted(make().state_dict())
NUMBERS = [
    "epoch", "steps_at_start", "steps_done", "num_trained", "num_full", "last_num_trained",
    "last_num_full", "num_nonfinite", "prunes", "scores_given",
]  # fmt: skip
WRONG_NUMBERS = {
    "-5": -5,
    "2.5": 2.5,
    "2.0": 2.0,
    "nan": float("nan"),
    "inf": float("inf"),
    "'3'": "3",
    "True": True,
    "10**30": 10**30,
    "a tensor": torch.tensor(1),
    "a long tensor": torch.arange(2000),
    "a list": [1] * 2000,
}


def with_(**fields: object) -> Hostile:
    return lambda state: {**state, **fields}


def without(name: str) -> Hostile:
    return lambda state: {key: value for key, value in state.items() if key != name}


def scores(change: Callable[[torch.Tensor], object]) -> Hostile:
    return lambda state: {**state, "scores": change(state["scores"])}


def metrics(change: Callable[[torch.Tensor], object]) -> Hostile:
    return lambda state: {**state, "metrics": change(state["metrics"])}


def one_is(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda values: values.index_fill(0, torch.tensor([7]), value)


STRANGE_TENSORS: dict[str, Callable[[torch.Tensor], object]] = {
    "shorter": lambda values: values[:-1],
    "longer": lambda values: torch.cat([values, values[:1]]),
    "empty": lambda values: values[:0],
    "a number": lambda values: values.sum(),
    "a row": lambda values: values[None],
    "float64": lambda values: values.double(),
    "float16": lambda values: values.half(),
    "int64": lambda values: values.nan_to_num().long(),
    "bool": lambda values: values > 1,
    "complex": lambda values: values.to(torch.complex64),
    "sparse": lambda values: values.to_sparse(),
    "sparse csr": lambda values: values.nan_to_num()[None].to_sparse_csr(),
    "quantized": lambda values: torch.quantize_per_tensor(
        values.nan_to_num(), 0.1, 0, torch.qint32
    ),
    "nested": lambda values: torch.nested.nested_tensor(list(values.split(10))),
    "meta": lambda values: values.to("meta"),
    "an array": lambda values: values.numpy(),
    "a list": lambda values: values.tolist(),
    "a string": lambda values: "scores",
    "bytes": lambda values: values.numpy().tobytes(),
}

HOSTILE: dict[str, Hostile] = {
    **{f"without {name}": without(name) for name in FIELDS},
    **{f"{name} None": with_(**{name: None}) for name in FIELDS if name != "num_steps"},
    **{
        f"{name} {label}": with_(**{name: value})
        for name in NUMBERS
        for label, value in WRONG_NUMBERS.items()
    },
    **{f"scores {label}": scores(change) for label, change in STRANGE_TENSORS.items()},
    "scores with inf": scores(one_is(torch.inf)),
    "scores with -inf": scores(one_is(-torch.inf)),
    **{
        f"metrics {label}": metrics(change)
        for label, change in STRANGE_TENSORS.items()
        if label not in ("float64", "quantized")
    },
    "metrics with inf": metrics(lambda values: values + torch.inf),
    "scores_given 2": with_(scores_given=2),
    "prunes 2": with_(prunes=2),
    "seed 2.5": with_(seed=2.5),
    "seed a string": with_(seed="3"),
    "seed True": with_(seed=True),
    "num_samples 41": with_(num_samples=41),
    "num_samples 40.0": with_(num_samples=40.0),
    "num_samples a tensor": with_(num_samples=torch.tensor(40)),
    "num_epochs 9": with_(num_epochs=9),
    "num_epochs 0": with_(num_epochs=0),
    "num_epochs 8.0": with_(num_epochs=8.0),
    "num_epochs a string": with_(num_epochs="8"),
    "num_steps 100": with_(num_steps=100),
    "delta 0.5": with_(delta=0.5),
    "delta nan": with_(delta=float("nan")),
    "delta a string": with_(delta="0.875"),
    "delta a tensor": with_(delta=torch.full((2000,), 0.875)),
    "rule of another name": with_(rule="Tiers()"),
    "rule an object": with_(rule=Mean()),
    "rule a tensor": with_(rule=torch.zeros(2000)),
    "memory a list": with_(memory=[]),
    "memory of another rule": with_(memory={"v": torch.zeros(NUM_SAMPLES)}),
    "memory with names of several types": with_(memory={"v": 1, 2: 3}),
    "memory a tensor": with_(memory=torch.zeros(2000)),
    "format 1": with_(format=1),
    "format 2": with_(format=2),
    "format 5": with_(format=5),
    "format '4'": with_(format="4"),
    "format 4.0": with_(format=4.0),
    "format None": with_(format=None),
    "format a tensor": with_(format=torch.tensor([3, 3])),
    "losses a string": with_(losses="-"),
    "losses a tensor": with_(losses=torch.zeros(3)),
    "losses empty": with_(losses=b""),
    "trained a string": with_(trained="-"),
    "trained empty": with_(trained=b""),
    "trained too long": with_(trained=b"\x01" * (NUM_SAMPLES + 1)),
    "a plan of another epoch": with_(plan="0:40:12345678"),
    "a plan that is a number": with_(plan=3),
    "None": lambda state: None,
    "nothing": lambda state: {},
    "a list": lambda state: list(state.items()),
    "a string": lambda state: "state.pt",
    "bytes": lambda state: b"state",
    "a tensor": lambda state: state["scores"],
    "a number": lambda state: 3,
    "a model": lambda state: torch.nn.Linear(3, 2).state_dict(),
    "a whole checkpoint": lambda state: {"model": {}, "pruner": state, "epoch": 3},
    "a format alone": lambda state: {"format": 4},
    "an old format alone": lambda state: {"format": 2},
}

AT_THE_START: dict[str, Hostile] = {
    "losses without a plan": with_(losses=bytes(8)),
    "what was trained without losses": with_(trained=b"\x01"),
}

IN_THE_MIDDLE: dict[str, Hostile] = {
    "losses cut inside a number": lambda state: {**state, "losses": state["losses"][:-1]},
    "losses with a byte more": lambda state: {**state, "losses": state["losses"] + b"-"},
    "losses of more than the plan": with_(losses=bytes(4 * (NUM_SAMPLES + 1))),
    "losses that are none": with_(losses=no_losses(12).numpy().tobytes()),
    "losses that end in none": lambda state: {
        **state,
        "losses": state["losses"] + no_losses(2).numpy().tobytes(),
    },
    "no losses": with_(losses=b"-"),
    "no plan": with_(plan=""),
    "the plan of the epoch before": lambda state: {**state, "epoch": state["epoch"] - 1},
    "another seed": with_(seed=12),
    "trained too short": with_(trained=b"\x01" * 11),
    "trained one too long": with_(trained=b"\x01" * 13),
    "trained of odd bytes": with_(trained=b"\x02" * 12),
    "trained of text": with_(trained=b"a" * 12),
}


def test_there_are_many_hostile_states() -> None:
    assert len(HOSTILE) + len(AT_THE_START) + len(IN_THE_MIDDLE) >= 80


@pytest.mark.filterwarnings("ignore:.*(Sparse|Quantize|quantize|nested):UserWarning")
@pytest.mark.parametrize("place", ["start", "middle"])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_state_is_refused_in_one_sentence_and_changes_nothing(
    hostile: Hostile, place: str
) -> None:
    pruner = trained("mean", place)
    check_is_one_sentence(refusal_of(pruner, hostile(pruner.state_dict())))


@pytest.mark.parametrize("hostile", AT_THE_START.values(), ids=AT_THE_START.keys())
@pytest.mark.parametrize("rule", RULES)
def test_a_hostile_state_of_an_epochs_start_is_refused(rule: str, hostile: Hostile) -> None:
    pruner = trained(rule, "start")
    check_is_one_sentence(refusal_of(pruner, hostile(pruner.state_dict())))


@pytest.mark.parametrize("hostile", IN_THE_MIDDLE.values(), ids=IN_THE_MIDDLE.keys())
@pytest.mark.parametrize("rule", RULES)
def test_a_hostile_state_of_a_running_epoch_is_refused(rule: str, hostile: Hostile) -> None:
    pruner = trained(rule, "middle")
    check_is_one_sentence(refusal_of(pruner, hostile(pruner.state_dict())))


@pytest.mark.filterwarnings("ignore::UserWarning")  # said once by torch of strange tensors
@pytest.mark.parametrize("place", ["start", "middle"])
@pytest.mark.parametrize("change", STRANGE_TENSORS.values(), ids=STRANGE_TENSORS.keys())
def test_hostile_memory_is_refused(change: Callable[[torch.Tensor], object], place: str) -> None:
    pruner = trained("ucb", place)
    state = pruner.state_dict()
    memory = {**state["memory"], "u": change(state["memory"]["u"])}
    message = refusal_of(pruner, {**state, "memory": memory})
    check_is_one_sentence(message)
    assert "memory 'u'" in message


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("place", ["start", "middle"])
def test_the_memory_of_another_rule_is_refused(rule: str, place: str) -> None:
    other = {"mean": "ucb", "ucb": "every-mean", "every-mean": "mean"}[rule]
    pruner = trained(rule, place)
    state = {**pruner.state_dict(), "memory": trained(other, place).state_dict()["memory"]}
    assert "remembers" in refusal_of(pruner, state)
    assert "the checkpoint has rule" in refusal_of(pruner, trained(other, place).state_dict())


@pytest.mark.parametrize("place", ["start", "middle"])
def test_a_fresh_run_refuses_too(place: str) -> None:
    state = trained("mean", place).state_dict()
    for hostile in (*HOSTILE.values(), *(IN_THE_MIDDLE.values() if place == "middle" else ())):
        pruner = make()
        with pytest.raises(StateError):
            pruner.load_state_dict(hostile(state))
        assert same_state(pruner.state_dict(), make().state_dict())


def test_what_is_wrong_is_named() -> None:
    pruner = trained("mean", "middle")
    state = pruner.state_dict()
    for name in FIELDS:
        assert name in refusal_of(pruner, without(name)(state))
    for name in NUMBERS:
        assert f"{name} -5, expected a whole number" in refusal_of(pruner, {**state, name: -5})
    assert "infinite scores" in refusal_of(pruner, scores(one_is(torch.inf))(state))
    assert "format 5, expected 4" in refusal_of(pruner, with_(format=5)(state))


@pytest.mark.parametrize("place", ["start", "middle"])
def test_a_checkpoint_without_metrics_goes_on_and_tells_those_it_can_know(place: str) -> None:
    """Format 3 had none: the first epoch's loss is not known, so there is no part of it left."""
    pruner = trained("mean", place)
    state = pruner.state_dict()
    before = {name: state[name] for name in state if name not in ("metrics", "scores_given")}
    resumed = make()
    resumed.load_state_dict({**before, "format": 3})
    assert "infobatch/loss" not in resumed.metrics
    assert train(resumed, 1) == train(pruner, 1)
    assert resumed.metrics["infobatch/loss"] == pruner.metrics["infobatch/loss"]
    assert "infobatch/loss_left" in pruner.metrics
    assert "infobatch/loss_left" not in resumed.metrics


def test_other_scores_draw_another_plan() -> None:
    pruner = trained("mean", "middle")
    message = refusal_of(pruner, scores(lambda values: values.flip(0))(pruner.state_dict()))
    assert message.startswith(f"torch {torch.__version__} draws another plan for epoch 2")


@pytest.mark.parametrize("place", ["start", "middle"])
@pytest.mark.parametrize("rule", RULES)
def test_a_friendly_state_is_loaded_from_any_mapping_and_tensor(rule: str, place: str) -> None:
    """Not hostile: what frameworks make of a state on its way through a file."""
    pruner = trained(rule, place)
    state = pruner.state_dict()
    spread = torch.stack([state["scores"], state["scores"]], dim=1)[:, 0]
    as_parameter = torch.nn.Parameter(state["scores"])
    for values in (spread, as_parameter):
        resumed = make(rule)
        resumed.load_state_dict(OrderedDict(state, scores=values, of_someone_else=3))
        assert same_state(resumed.state_dict(), state)
        assert train(resumed, 2) == train(copy.deepcopy(pruner), 2)


def test_a_loaded_state_shares_nothing_with_the_run() -> None:
    state = trained("ucb", "middle").state_dict()
    saved = copy.deepcopy(state)
    resumed = make("ucb")
    resumed.load_state_dict(state)
    train(resumed, 2)
    assert same_state(state, saved)


# Checkpoints of infobatch 0.1 --------------------------------------------------------------------

OLD = sorted(path.stem for path in write.FOLDER.glob("*.pt"))


def load_old(name: str) -> dict[str, Any]:
    saved: dict[str, Any] = torch.load(write.FOLDER / f"{name}.pt", weights_only=True)
    assert saved["state"]["format"] == 2
    return saved


def test_there_are_old_checkpoints() -> None:
    assert len(OLD) >= 9


@pytest.mark.parametrize("name", OLD)
@pytest.mark.filterwarnings("ignore:the checkpoint was taken in the middle")
def test_a_checkpoint_of_0_1_goes_on_as_it_did_there(name: str) -> None:
    saved = load_old(name)
    pruner = write.make(saved["rule"], saved["settings"])
    pruner.load_state_dict(saved["state"])
    plans = write.train(pruner, write.LAST_EPOCH)
    assert [(plan, list(left)) for plan, left in saved["plans"]] == plans
    assert torch.equal(pruner.scores, saved["scores"])


def test_a_checkpoint_of_0_1_of_one_rank_says_what_it_lacks() -> None:
    saved = load_old("mean-without-sync")
    with pytest.warns(RuntimeWarning, match="3 samples that other ranks had trained keep"):
        write.make(saved["rule"], saved["settings"]).load_state_dict(saved["state"])


OLD_HOSTILE: dict[str, Hostile] = {
    **{
        f"without {name}": without(name)
        for name in sorted(load_old("start")["state"].keys() - {"format"})
    },
    "running cut": lambda state: {**state, "running": state["running"][:-100]},
    "running empty": with_(running=b""),
    "running text": with_(running=b"text"),
    "running a tensor": with_(running=torch.zeros(3)),
    "memory cut": lambda state: {**state, "memory": state["memory"][:-1]},
    "memory text": with_(memory=b"text"),
    "memory of today": with_(memory={}),
    "epoch -5": with_(epoch=-5),
    "epoch 10**30": with_(epoch=10**30),
    "another plan": with_(plan="2:12:12345678"),
    "scores of another shape": scores(lambda values: values[:-1]),
}


@pytest.mark.parametrize("name", ["mean-scattered", "tiers-scattered", "ucb-first"])
@pytest.mark.parametrize("hostile", OLD_HOSTILE.values(), ids=OLD_HOSTILE.keys())
def test_a_hostile_checkpoint_of_0_1_is_refused(name: str, hostile: Hostile) -> None:
    saved = load_old(name)
    pruner = write.make(saved["rule"], saved["settings"])
    pruner.load_state_dict(saved["state"])
    before = pruner.state_dict()
    with pytest.raises(StateError) as caught:
        pruner.load_state_dict(hostile(saved["state"]))  # type: ignore[arg-type]
    check_is_one_sentence(str(caught.value))
    assert same_state(pruner.state_dict(), before)


def test_a_rule_that_remembered_other_things_in_0_1_is_refused() -> None:
    saved, mean = load_old("ucb-boundary"), load_old("every-mean-boundary")
    pruner = write.make(saved["rule"], saved["settings"])
    with pytest.raises(StateError, match="of infobatch 0.1, where .* remembered other things"):
        pruner.load_state_dict({**saved["state"], "memory": mean["state"]["memory"]})


# A longer run ------------------------------------------------------------------------------------


def resume(state: State, **settings: Any) -> Pruner:
    pruner = make(**settings)
    pruner.load_state_dict(state)
    return pruner


def test_in_mid_epoch_a_longer_run_keeps_the_plan_and_counts_from_the_next_epoch() -> None:
    pruner = make(num_epochs=4, delta=0.5)
    train(pruner, 2, num_batches=2)
    assert pruner.plan.num_pruned == 0  # the annealing
    with pytest.warns(RuntimeWarning, match="longer .* num_epochs 8 in place of 4") as caught:
        longer = resume(pruner.state_dict(), num_epochs=8, delta=0.5)
    assert len(caught) == 1
    assert longer.plan.fingerprint == pruner.plan.fingerprint
    assert longer.num_reported == pruner.num_reported
    train(longer, 1)
    assert longer.epoch == 3
    assert longer.plan.num_pruned > 0  # 3 < 0.5 * 8
    assert longer.state_dict()["num_epochs"] == 8


def test_at_a_boundary_a_longer_run_counts_at_once() -> None:
    pruner = make(num_epochs=4, delta=0.5)
    train(pruner, 2)
    state = pruner.state_dict()
    assert pruner.plan.num_pruned == 0
    with pytest.warns(RuntimeWarning, match="longer"):
        longer = resume(state, num_epochs=8, delta=0.5)
    assert longer.plan.num_pruned > 0
    # As a run would that was as long from its start.
    whole = make(num_epochs=8, delta=0.5)
    train(whole, 2)
    assert train(longer, 4) == train(whole, 4)
    assert same_state(longer.state_dict(), whole.state_dict())


def test_a_longer_run_says_so_once() -> None:
    pruner = make(num_epochs=4)
    train(pruner, 1)
    with pytest.warns(RuntimeWarning, match="longer"):
        longer = resume(pruner.state_dict(), num_epochs=8)
    resume(longer.state_dict(), num_epochs=8)  # warnings are errors here


def test_steps_may_be_more_too() -> None:
    pruner = make(num_epochs=None, num_steps=20, delta=0.5)
    train(pruner, 2)  # 7 and about 5 steps
    assert pruner.plan.num_pruned == 0
    with pytest.warns(RuntimeWarning, match="num_steps 60 in place of 20"):
        longer = resume(pruner.state_dict(), num_epochs=None, num_steps=60, delta=0.5)
    assert longer.plan.num_pruned > 0
    with pytest.raises(StateError, match="num_steps 20, this run 19"):
        resume(pruner.state_dict(), num_epochs=None, num_steps=19, delta=0.5)
    with pytest.raises(StateError, match="has num_epochs None, this run 20"):
        resume(pruner.state_dict(), num_epochs=20, delta=0.5)


@pytest.mark.parametrize("num_batches", [0, 2])
def test_a_shorter_run_is_refused(num_batches: int) -> None:
    pruner = make(num_epochs=9)
    train(pruner, 2, num_batches)
    message = refusal_of(make(num_epochs=8), pruner.state_dict())
    assert message.startswith("the checkpoint has num_epochs 9, this run 8")


# Known scores ------------------------------------------------------------------------------------


def test_a_run_that_starts_from_known_scores_prunes_its_first_epoch() -> None:
    known = loss_of(torch.arange(NUM_SAMPLES))
    known[::4] = torch.nan
    pruner = make()
    assert pruner.plan.num_pruned == 0
    pruner.load_scores(known)
    assert pruner.epoch == 0
    assert torch.equal(pruner.scores.nan_to_num(-1), known.nan_to_num(-1))
    plan = pruner.plan
    assert plan.num_pruned > 0
    weight_of = dict(zip(plan.indices.tolist(), plan.weights.tolist(), strict=True))
    assert all(weight_of[i] == 1 for i in range(0, NUM_SAMPLES, 4))  # unseen: always kept
    skipped = [i for i in range(NUM_SAMPLES) if i not in weight_of]
    assert all(known[i] < known.nanmean() for i in skipped)


def test_known_scores_are_copied_and_may_be_of_any_number_type() -> None:
    known = loss_of(torch.arange(NUM_SAMPLES)).double().requires_grad_()
    pruner = make()
    pruner.load_scores(known)
    with torch.no_grad():
        known.zero_()
    assert torch.equal(pruner.scores, loss_of(torch.arange(NUM_SAMPLES)))
    resumed = make()
    resumed.load_state_dict(pruner.state_dict())
    assert resumed.plan.fingerprint == pruner.plan.fingerprint


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (torch.zeros(NUM_SAMPLES - 1), r"scores is \(39,\), expected a tensor of 40 scores"),
        (torch.zeros(NUM_SAMPLES, 1), r"scores is \(40, 1\), expected"),
        ([0.0] * NUM_SAMPLES, "scores is list, expected"),
        (torch.full((NUM_SAMPLES,), torch.inf), "infinite entries"),
        (torch.full((NUM_SAMPLES,), 1e300, dtype=torch.float64), "infinite entries"),
    ],
)
def test_scores_that_are_none_are_refused_and_change_nothing(wrong: Any, sentence: str) -> None:
    pruner = make()
    pruner.load_scores(torch.arange(40.0))
    before = pruner.state_dict()
    with pytest.raises(ValueError, match=sentence):
        pruner.load_scores(wrong)
    assert same_state(pruner.state_dict(), before)


@pytest.mark.parametrize(("num_epochs", "num_batches"), [(0, 1), (1, 0), (2, 2)])
def test_after_the_first_update_known_scores_come_too_late(
    num_epochs: int, num_batches: int
) -> None:
    pruner = make()
    train(pruner, num_epochs, num_batches)
    before = pruner.state_dict()
    with pytest.raises(OrderError, match="after the first update"):
        pruner.load_scores(torch.zeros(NUM_SAMPLES))
    assert same_state(pruner.state_dict(), before)


# The annealing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "delta_of", [lambda percent: percent / 100, lambda percent: percent * 0.01]
)
def test_the_epochs_before_the_annealing_are_counted_exactly(
    delta_of: Callable[[int], float],
) -> None:
    """Delta in hundredths, rounded once or twice, against whole numbers."""
    for percent in range(1, 101):
        for length in range(1, 201):
            settings = Settings(9, length, None, delta_of(percent), Mean())
            last = -(-percent * length // 100) - 1
            assert 100 * last < percent * length <= 100 * (last + 1)
            assert settings.prunes(last, num_steps_done=10**6)
            assert not settings.prunes(last + 1, num_steps_done=0)


def test_the_steps_before_the_annealing_are_counted_exactly() -> None:
    settings = Settings(9, None, 100, 0.55, Mean())
    assert settings.prunes(10**6, num_steps_done=54)
    assert not settings.prunes(0, num_steps_done=55)


def test_a_delta_of_thirds_is_a_third() -> None:
    for length in range(3, 200, 3):
        settings = Settings(9, length, None, 1 / 3, Mean())
        assert settings.prunes(length // 3 - 1, 0)
        assert not settings.prunes(length // 3, 0)
        assert not Settings(9, length, None, 2 / 3, Mean()).prunes(2 * length // 3, 0)
