"""A cache folder of the tests' own, and whether a TPU compiler works here."""

import pytest

from tpulab.xla import CompilerMissing, pair


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """One folder for all tests, so that a program that two of them compile is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache_folder(shared_cache, monkeypatch):
    """Keep results out of the user's cache."""
    monkeypatch.setenv("TPULAB_CACHE", str(shared_cache))
    monkeypatch.delenv("TPULAB_RECORD_COMPILED", raising=False)
    return shared_cache


@pytest.fixture
def needs_compiler(cache_folder):
    """Skip where no TPU compiler works."""
    try:
        pair.prepare()
    except CompilerMissing as missing:
        pytest.skip(str(missing))
