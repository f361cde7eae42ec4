from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infobatch_lab.images import Images, read_digits
from infobatch_lab.settings import settings
from infobatch_lab.tasks.classification import Classification
from tests.lab.tasks.contract import check_contract


def few_digits() -> Classification:
    digits = read_digits(Path("unused"), lambda *_: None)
    train = Images(digits.train.images[:65], digits.train.labels[:65])  # a last batch of one
    test = Images(digits.test.images[:30], digits.test.labels[:30])
    return Classification(replace(digits, train=train, test=test, crop=1, flip=True))


@pytest.mark.parametrize("changes", [{}, {"mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1}])
def test_the_contract(tmp_path: Path, changes: dict[str, Any]) -> None:
    chosen = settings("digits", epochs=3, batch_size=16, **changes)
    check_contract(few_digits(), chosen, tmp_path)
