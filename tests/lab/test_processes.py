"""Processes that train together, and how they part."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from infobatch_lab import processes


class ExitedError(Exception):
    """The process is gone."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What happens, in order, in one of two processes under gloo."""
    happened = Mock()
    happened.dist.get_backend.return_value = "gloo"
    happened.exit.side_effect = ExitedError
    monkeypatch.setattr(processes, "dist", happened.dist)
    monkeypatch.setattr(os, "_exit", happened.exit)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    return happened


def names_of(calls: Mock) -> list[Any]:
    return [call[0].removeprefix("dist.") for call in calls.mock_calls]


def test_under_gloo_only_the_first_process_leaves_the_group(
    calls: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    with processes.process_group():
        calls.body()
    assert names_of(calls) == ["init_process_group", "body", "barrier", "destroy_process_group"]


def test_under_gloo_the_others_exit_in_it(calls: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ExitedError), processes.process_group():
        calls.body()
    # A process that exits does not come to the end of its group.
    *parting, _ = names_of(calls)
    assert parting == ["init_process_group", "body", "barrier", "get_backend", "exit"]
    calls.exit.assert_called_once_with(0)


def test_without_gloo_all_processes_leave_the_group(
    calls: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    calls.dist.get_backend.return_value = "nccl"
    with processes.process_group():
        pass
    assert names_of(calls)[-2:] == ["get_backend", "destroy_process_group"]


def test_a_process_that_fails_does_not_exit_with_code_0(
    calls: Mock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ZeroDivisionError), processes.process_group():
        raise ZeroDivisionError
    calls.exit.assert_not_called()


def test_a_single_process_has_no_group(calls: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE")
    with processes.process_group():
        pass
    assert names_of(calls) == []
