"""A strict world for every test: several devices, progress in a folder that is thrown away."""

import os

import pytest

DEVICES = int(os.environ.get("TPULAB_DEVICES") or 8)
os.environ["NPROC"] = str(max(16, 2 * DEVICES))
os.environ["JAX_NUM_CPU_DEVICES"] = str(DEVICES)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MPLBACKEND"] = "agg"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Give each test a progress folder of its own, and no autograder."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TPULAB_HOME", str(folder))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Under CI=true everything that tests need was installed, so a skip is a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report
