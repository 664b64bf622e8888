"""Every stored case, on every routing of its sweep."""

from __future__ import annotations

import pytest
import torch

from corpus.store import StoredCase, stored_cases
from oracles.adapters.kernels import IMPLEMENTATION
from oracles.check import Status, Sweep, check
from oracles.report import report


@pytest.mark.parametrize("stored", list(stored_cases()), ids=lambda stored: stored.id)
def test_stored_case(stored: StoredCase, device: torch.device) -> None:
    verdict = check(stored.case, IMPLEMENTATION, device, Sweep.ALL)
    assert verdict.status is Status.PASSED, verdict.reason or report(verdict, stored.path, device.type)
