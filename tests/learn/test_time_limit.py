import itertools
import signal
import threading
import time

import pytest

from tpulab.learn import time_limit as limits
from tpulab.learn.time_limit import TimeLimitExceeded, time_limit


def endless():
    while True:
        pass


def swallows():
    while True:
        try:
            endless()
        except Exception:
            continue


@pytest.mark.parametrize("body", [endless, swallows, lambda: time.sleep(30)])
def test_alarm_stops(body):
    start = time.monotonic()
    with pytest.raises(TimeLimitExceeded), time_limit(0.1):
        body()
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("wait", [lambda: time.sleep(30), lambda: threading.Event().wait(30)], ids=["sleep", "wait"])
def test_waiting_counts_like_computing(wait):
    start = time.monotonic()
    with pytest.raises(TimeLimitExceeded), time_limit(1.0):
        wait()
    assert time.monotonic() - start < 2


def test_a_crowded_machine_gets_longer(monkeypatch):
    """A process that gets a fifth of a processor is not waiting."""
    wall = iter(range(1000))
    monkeypatch.setattr(limits.time, "monotonic", lambda: next(wall))
    monkeypatch.setattr(limits.time, "process_time", lambda: next(cpu) / 5)
    for share, looks in ((1, 60), (0, 20)):
        cpu = iter(range(0, 1000 * share, share)) if share else itertools.repeat(0)
        left = limits._countdown(20)
        assert sum(1 for _ in iter(left, 0.0)) + 1 == looks


@pytest.mark.parametrize("body", [endless, swallows])
def test_without_sigalrm(body, monkeypatch):
    monkeypatch.delattr(signal, "SIGALRM")
    with pytest.raises(TimeLimitExceeded), time_limit(0.1):
        body()


def test_in_another_thread():
    seen = []

    def work():
        try:
            with time_limit(0.1):
                endless()
        except TimeLimitExceeded:
            seen.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert seen == ["stopped"]


@pytest.mark.parametrize("has_alarm", [True, False])
def test_in_time_nothing_follows(has_alarm, monkeypatch):
    if not has_alarm:
        monkeypatch.delattr(signal, "SIGALRM")
    with time_limit(0.05):
        pass
    time.sleep(0.1)
    for _ in range(1000):
        pass


def test_an_outer_alarm_still_rings():
    with pytest.raises(TimeLimitExceeded), time_limit(0.3):
        with time_limit(5):
            pass
        endless()
