"""How fast a report opens, and how large it is: `python benchmarks/report_page.py [CLIENTS]`.

Ten runs of 10,000 clients are invented, rendered and opened in Chromium, five times; the time is
from the start of navigation until the first rows of the clients' table are painted, and medians
are shown.
"""

import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from concordfl.report.page import render
from report.conftest import start_chromium
from report.documents import document

CLIENTS = 10_000
METHODS = tuple(f"method {number}" for number in range(5))  # two seeds each


def main() -> None:
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS
    made = document(clients, seeds=2, methods=METHODS)
    before = time.perf_counter()
    text = render(made)
    rendered = time.perf_counter() - before
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        page = Path(folder, "report.html")
        page.write_text(text, encoding="utf-8")
        opened = [milliseconds(driver, page.as_uri()) for _ in range(5)]
    print(f"{clients} clients, {len(made['clients']['runs'])} runs")
    print(f"rendered in   {rendered:.2f} s")
    print(f"size          {len(text.encode()) / 1e6:.1f} MB")
    print(f"opens within  {statistics.median(opened) / 1000:.2f} s")


@contextmanager
def chromium():
    driver = start_chromium()
    try:
        yield driver
    finally:
        driver.quit()


def milliseconds(driver, address):
    """The page marks the moment; the rows are looked for, so that the mark means something."""
    driver.get("about:blank")
    driver.get(address)
    return driver.execute_async_script(
        """const done = arguments[0];
        const look = () => {
          const [mark] = performance.getEntriesByName("concordfl-shown");
          const rows = document.querySelectorAll("#clients tbody tr").length;
          if (mark && rows) done(mark.startTime);
          else setTimeout(look, 20);
        };
        look();"""
    )


if __name__ == "__main__":
    main()
