"""The live page in a real browser."""

import json
import shutil

import pytest

from concordfl.engine.records import RunFolder
from watched import served

NAME = "<b>bold</b> &lt;i&gt; <img src=x onerror=alert(1)></script>"
MESSAGE = "<script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{argument}")
    made = webdriver.Chrome(options=options, service=Service(driver))
    yield made
    made.quit()


def until(browser, script):
    """What `script` returns, as soon as that is something."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(lambda page: page.execute_script(f"return {script}"))


def write(path, rounds):
    failure = {"client": "a", "step": MESSAGE, "round": 1, "detail": "x"}
    config = f"[algorithm]\nname = {json.dumps(NAME)}\n[run]\nseed = 7\n"
    with RunFolder.create(path, config) as folder:
        folder.write_progress({"round": rounds, "rounds": 40, "stage": "train", "seconds": 9.5})
        for round in range(5, rounds + 1, 5):
            scores = {"local": {"accuracy": round / 50}, "global": {"accuracy": round / 60}}
            folder.append_record({"round": round, "failures": [failure], **scores})


def test_the_page_shows_runs_as_they_are(browser, tmp_path):
    write(tmp_path / "run", 20)
    with served(tmp_path / "run") as server:
        browser.get(server.url)
        until(
            browser,
            "document.querySelectorAll('.plot .scatterlayer .trace path.js-line').length == 2",
        )
        name = browser.execute_script("return document.querySelector('.run b').textContent")
        assert name == f"{NAME}, seed 7"
        assert MESSAGE in browser.execute_script(
            "return document.querySelector('#messages').innerText"
        )
        assert (
            browser.execute_script("return document.querySelectorAll('main img, main i').length")
            == 0
        )
        figures = browser.execute_script("return document.querySelector('.run dd').textContent")
        assert figures == "40.0"
        browser.execute_script(
            "Plotly.Fx.hover(document.querySelector('.plot'), [{curveNumber: 0, pointNumber: 1}])"
        )
        hover = until(browser, "document.querySelector('.hoverlayer').textContent")
        assert NAME[:20] in hover  # shortened, and no tag of it obeyed
        assert "20 in round 10" in hover

        with RunFolder(tmp_path / "run") as folder:
            folder.append_record({"round": 25, "local": {"accuracy": 0.55}})
        assert until(browser, "document.querySelector('.run dd').textContent == '55.0'")
        drawn = "document.querySelector('.plot').data[0].y"
        assert until(browser, f"{drawn}.length == 5 && {drawn}")[-1] == pytest.approx(55)

    ended = until(browser, "document.querySelector('#connection').textContent")
    assert ended.startswith("The watcher has ended")
    logged = [entry["message"] for entry in browser.get_log("browser")]
    assert all("ERR_CONNECTION_REFUSED" in message for message in logged), logged
    with served(tmp_path / "run", server.server_port):
        assert until(browser, "document.querySelector('#connection').textContent == ''")
        assert until(browser, "document.querySelector('.run dd').textContent == '55.0'")
    browser.get("about:blank")
