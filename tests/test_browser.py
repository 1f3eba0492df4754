"""The course as a person meets it: a real JupyterLab in a real Chromium."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Kept by CI as a build output.
SHOTS = Path(__file__).parent.parent / "build" / "screenshots"
NOTEBOOK = "03_jit.ipynb"
WRONG = "def count_traces(f, inputs):\n    return len(inputs)"
RIGHT = """def count_traces(f, inputs):
    import jax
    traces = []
    def talks(x):
        traces.append(1)
        return f(x)
    compiled = jax.jit(talks)
    for x in inputs:
        compiled(x)
    return len(traces)"""

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install your system's package to run this"),
    pytest.mark.timeout(400),
]


@pytest.fixture
def address(tmp_path, home) -> Iterator[str]:
    """Start the course with the command that learners use, and give the address it prints."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "NPROC", "PYTEST_", "MPL"))}
    command = [sys.executable, "-m", "tpulab", "lab", "--work", str(tmp_path / "my course"), "--no-browser"]
    environment = kept | {"TPULAB_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+/\S*token=\S+", line):
                break
        else:
            pytest.fail("the command ended without printing an address")
        yield found.group()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


@pytest.fixture
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        context.set_default_timeout(30_000)
        yield context.new_page()
        browser.close()


def cell_with(page: Page, text: str):
    """Scroll through the notebook until the code cell with this text is on the page."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").filter(has_text=text).first
    panel = page.locator(".jp-WindowedPanel-outer").first
    panel.evaluate("panel => panel.scrollTop = 0")
    for _ in range(200):
        if cell.count() and cell.is_visible():
            cell.scroll_into_view_if_needed()
            return cell
        panel.evaluate("panel => panel.scrollTop += 400")
        page.wait_for_timeout(50)
    raise AssertionError(f"no cell with {text!r}")


def write(page: Page, cell, text: str) -> None:
    """Replace a cell's text as a person would, and run it."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Enter")


def run_cell(page: Page, cell) -> None:
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def test_a_learner_works_through_a_chapter(address, page):
    page.goto(address.replace("00_start.ipynb", NOTEBOOK))
    expect(page.locator(".jp-Notebook")).to_be_visible(timeout=90_000)
    assert page.locator("text=Would you like to").count() == 0, "no news prompt"
    # Run too early and JupyterLab asks which kernel to take.
    expect(page.get_by_role("button", name=re.compile(r"Python 3 .*\| Idle"))).to_be_visible(timeout=90_000)

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    check = cell_with(page, 'tpulab.check("jit.3"')
    expect(check.locator(".jp-OutputArea")).to_contain_text("Not attempted", timeout=120_000)

    stub = cell_with(page, "def count_traces(f, inputs):")
    write(page, stub, WRONG)
    run_cell(page, cell_with(page, 'tpulab.check("jit.3"'))
    answer = cell_with(page, 'tpulab.check("jit.3"').locator(".jp-OutputArea")
    expect(answer).to_contain_text("Not yet", timeout=60_000)
    page.screenshot(path=shot("not_yet"))

    write(page, cell_with(page, "return len(inputs)"), RIGHT)
    run_cell(page, cell_with(page, 'tpulab.check("jit.3"'))
    answer = cell_with(page, 'tpulab.check("jit.3"').locator(".jp-OutputArea")
    expect(answer).to_contain_text("Correct", timeout=60_000)
    page.screenshot(path=shot("correct"))

    slider = cell_with(page, "widgets.IntSlider")
    picture = slider.locator(".jp-OutputArea img")
    expect(picture).to_be_visible(timeout=60_000)
    before, words = picture.get_attribute("src"), picture.get_attribute("alt")
    handle = slider.locator(".noUi-handle").first
    handle.focus()
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", before or "", timeout=60_000)
    assert "batch size" in (words or "") and "trace" in (words or "")
    assert picture.get_attribute("alt") != words, "the words follow the picture"
    page.screenshot(path=shot("slider"))


def shot(name: str) -> Path:
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS / f"{name}.png"
