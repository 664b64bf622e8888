"""Options, Hypothesis profiles and the summary table of a run.

`--device cpu` (default) runs kernels in Triton's interpreter, `--device cuda` compiled on a GPU. The device is settled
before anything imports Triton, since a process either interprets or compiles.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests import profiles
from tests.record import RECORD, Record

profiles.register()

#: Where the whole summary of the last run is kept.
SUMMARY = Path(__file__).parents[1] / "build" / "summary.txt"
#: How many tests are for another device.
OTHERS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cpu", "cuda"), default="cpu", help="interpret kernels, or run them on a GPU")
    parser.addoption("--sweep", choices=("own", "some", "all"), help="routings of each case (default: by profile)")
    parser.addoption("--parts", type=int, default=1, help="split each path's examples into so many tests, to share")
    parser.addoption(
        "--sharpness", action="store_true", help="say how sharp each bound was, not the five at either end"
    )
    parser.addoption("--kernel-coverage", action="store_true", help="say which branches of kernels the run left out")
    parser.addoption("--kernel-coverage-least", type=float, metavar="PERCENT", help="and fail if it is below PERCENT")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "part" in metafunc.fixturenames:
        parts = metafunc.config.getoption("--parts")
        metafunc.parametrize("part", [(number, parts) for number in range(parts)], ids=lambda part: str(part[0]))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_device(type): only for --device TYPE, left out elsewhere")
    if config.getoption("--device") == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    least = config.getoption("--kernel-coverage-least")
    if config.getoption("--kernel-coverage") or least is not None:
        if config.getoption("--device") != "cpu":
            raise pytest.UsageError("--kernel-coverage: only the interpreter can tell; it needs --device cpu")
        from tests.kernel_coverage import KernelCoverage

        config.pluginmanager.register(KernelCoverage(least))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for another device."""
    device = config.getoption("--device")
    others = [item for item in items if any(m.args[0] != device for m in item.iter_markers("needs_device"))]
    if others:
        config.hook.pytest_deselected(items=others)
        config.stash[OTHERS] = len(others)
        items[:] = [item for item in items if item not in set(others)]


def pytest_report_header(config: pytest.Config) -> str:
    from oracles.report import versions

    return f"device {config.getoption('--device')}; {versions()}"


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> Any:
    """The torch device that kernels run on."""
    import torch

    return torch.device(pytestconfig.getoption("--device"))


@pytest.fixture(scope="session")
def sweep(pytestconfig: pytest.Config) -> str:
    """Which routings of a case are checked: all of them in the thorough profiles, some otherwise."""
    chosen = pytestconfig.getoption("--sweep")
    return chosen or ("all" if settings.get_current_profile_name() in profiles.FULL_SWEEP else "some")


@pytest.fixture(scope="session")
def record() -> Record:
    """Where the property tests note what they did."""
    return RECORD


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # an xdist worker: send the record home
        output["record"] = RECORD.to_json()
        output["others"] = session.config.stash.get(OTHERS, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    output = getattr(node, "workeroutput", {})
    if "record" in output:
        RECORD.merge(Record.from_json(output["record"]))
        node.config.stash[OTHERS] = output["others"]  # every worker collects all tests


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if RECORD.examples:
        terminalreporter.section("kernel paths")
        for line in RECORD.table(terminalreporter.config.getoption("--sharpness")):
            terminalreporter.write_line(line)
        RECORD.keep(SUMMARY)
    others = terminalreporter.config.stash.get(OTHERS, 0)
    if others:
        terminalreporter.write_line(f"{others} tests are left out: they are for another --device")
    from corpus.store import left_running

    for path in left_running():
        terminalreporter.write_line(f"A process was killed while it ran a case. Saved: {path}", red=True)
        terminalreporter.write_line(f"Reproduce: python -m corpus replay {path}", red=True)
