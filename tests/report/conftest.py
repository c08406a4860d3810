"""Chromium for the tests of pages: one for the session, without a network."""

import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


PROGRAMS = ("chromium", "chromedriver")


@pytest.fixture(scope="session")
def chromium():
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"pages are tested in a real browser: there is no {' and no '.join(missing)}")
    driver = start_chromium()
    yield driver
    driver.quit()


def start_chromium():
    browser, service = (shutil.which(name) for name in PROGRAMS)
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(service))
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    return driver


@pytest.fixture
def browser(chromium):
    """A wide window in light colours, whatever the test before has left."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    emulate(chromium)
    resize(chromium, 1280)
    return chromium


def emulate(driver, scheme="light", media=""):
    """Without motion: what is scrolled to is there at once."""
    wishes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def resize(driver, width, height=900):
    """By the device's metrics: windows have a least width."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
