import signal
import threading
import time

import pytest

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
