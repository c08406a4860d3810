"""The page, in a real browser without a network."""

import csv
import io
import json
import re
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from concordfl.report.page import render
from concordfl.report.pictures import to_csv
from report.conftest import emulate, resize
from report.documents import HOSTILE, chart, document

MINUS = "\u2212"


@pytest.fixture(scope="module")
def made():
    return document(clients=60)


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    return write(tmp_path_factory.mktemp("page"), made)


def write(folder, made):
    file = folder / "report.html"
    file.write_text(render(made), encoding="utf-8")
    return file.as_uri()


def until(browser, condition, *arguments):
    """What a script returns, once it is not nothing."""
    try:
        return WebDriverWait(browser, 20).until(
            lambda driver: driver.execute_script(f"return {condition}", *arguments)
        )
    except TimeoutException:
        pytest.fail(f"did not become true: {condition}")


def draw_all(browser):
    """As a reader who scrolls to every chart."""
    for picture in browser.find_elements(By.CSS_SELECTOR, ".picture"):
        browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", picture)
        until(browser, "arguments[0].querySelector('.main-svg') !== null", picture)


def problems(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def cells(browser, column, within="#clients"):
    shown = browser.find_elements(By.CSS_SELECTOR, f"{within} tbody tr td:nth-child({column + 1})")
    return [cell.text for cell in shown]


def texts(browser, selector):
    return browser.execute_script(
        """return [...document.querySelectorAll(arguments[0])]
        .map((one) => one.textContent.toWellFormed())""",
        selector,
    )


def number(text):
    return None if text == "–" else float(re.sub("[,%+]", "", text.replace(MINUS, "-")))


def test_all_that_is_in_the_document_is_on_the_page(browser, page, made):
    browser.get(page)
    assert browser.title == made["title"]
    assert texts(browser, "h1") == [made["headline"]]
    assert texts(browser, ".sentences p") == made["sentences"]
    assert texts(browser, "header dt") == list(made["facts"])
    assert texts(browser, "header dd") == list(made["facts"].values())
    titles = [section["title"] for section in made["sections"]] + ["Clients", "Details"]
    assert texts(browser, "main > section > h2") == titles
    assert texts(browser, "nav a") == titles
    assert texts(browser, "main > section > .lead")[:-1] == [
        one["lead"] for one in made["sections"]
    ]
    first = [view for section in made["sections"] for view in section["views"][:1]]
    charts = [one for view in first for one in view["charts"]]
    assert texts(browser, ".chart h3") == [one["panel"]["title"] for one in charts]
    images = [one for view in first for own in view.get("galleries", []) for one in own["images"]]
    until(browser, "[...document.images].every((image) => image.loading === 'lazy')")
    assert texts(browser, ".gallery figcaption") == [image["caption"] for image in images]
    assert texts(browser, "#details li") == made["warnings"]
    assert texts(browser, "#details > details > dl dd") == [one["reason"] for one in made["absent"]]
    pre = [text for one in made["repeat"] for text in (one["config"], one["command"])]
    assert texts(browser, "pre") == pre
    assert texts(browser, "footer") == [made["made"]]
    assert problems(browser) == []


def test_images_are_shown(browser, page):
    browser.get(page)
    gallery = browser.find_element(By.CSS_SELECTOR, ".gallery")
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", gallery)
    until(browser, "arguments[0].querySelector('img').naturalWidth === 12", gallery)


def values_in(series):
    return sum(len(one["y"]) for one in series)


BARS = ".barlayer .point path"
MARKS = {  # of each kind, what is counted in the drawing, and how many of it series have
    "lines": (".scatterlayer .js-line", lambda series: 2 * len(series)),  # with bands
    "bars": (BARS, lambda series: 2 * values_in(series)),  # of gains, and of losses
    "stacked": (BARS, values_in),
    "points": (".scatterlayer .point", values_in),
    "histogram": (BARS, values_in),
    "boxes": (".boxlayer .box", len),
    "heatmap": (".xy .heatmaplayer image", lambda series: 1),
}


def test_bars_are_as_high_as_their_values(browser, page, made):
    browser.get(page)
    draw_all(browser)
    for id, section in {"gain-local": 8, "likelihoods-x": 6}.items():
        charts = {one["id"]: one for one in made["sections"][section]["views"][0]["charts"]}
        heights = browser.execute_script(
            """return [...document.querySelectorAll(`#chart-${arguments[0]} .barlayer .point path`)]
            .map((bar) => bar.getBBox().height)""",
            id,
        )
        values = np.abs([y for one in charts[id]["panel"]["series"] for y in one["y"]])
        if id == "gain-local":  # a trace of gains, and one of losses
            heights = np.sum(np.reshape(heights, (2, -1)), 0)
        scale = np.max(heights) / values.max()
        np.testing.assert_allclose(heights, values * scale, atol=1.5)  # drawn in whole pixels


def test_every_chart_is_drawn_once_one_scrolls_there(browser, page, made):
    browser.get(page)
    until(browser, "document.querySelector('.picture .main-svg') !== null")
    undrawn = browser.execute_script(
        "return document.querySelectorAll('.picture:not(:has(.main-svg))').length"
    )
    assert undrawn > 3  # those far below wait
    draw_all(browser)
    for section in made["sections"]:
        for one in section["views"][0]["charts"]:
            marks, count = MARKS[one["panel"]["kind"]]
            found = browser.execute_script(
                "return document.querySelectorAll(`#chart-${arguments[0]} ${arguments[1]}`).length",
                one["id"],
                marks,
            )
            assert found == count(one["panel"]["series"]), one["id"]
    assert problems(browser) == []


def test_thousands_of_bars_are_drawn_as_an_area(browser, tmp_path):
    made = document(clients=12)
    x = [f"client {one}" for one in range(4000)]
    gains = [3 - one % 5 for one in range(4000)]
    panels = [
        chart("gains", "bars", "Gains", "client", "points", [{"name": "gain", "x": x, "y": gains}]),
        chart(
            *("parts", "stacked", "Parts", "client", "share"),
            [{"name": name, "x": x, "y": [0.5] * 4000} for name in ("one", "other")],
        ),
    ]
    views = [{"name": "", "charts": panels}]
    made["sections"] = [{"id": "many", "title": "m", "lead": "", "views": views}]
    browser.get(write(tmp_path, made))
    draw_all(browser)
    for panel in panels:
        area = f"#chart-{panel['id']}"
        assert len(browser.find_elements(By.CSS_SELECTOR, f"{area} .scatterlayer .trace")) == 2
        assert browser.find_elements(By.CSS_SELECTOR, f"{area} .barlayer .point") == []
    up, down = browser.execute_script(
        "return document.querySelector('#chart-gains .picture').data.map((trace) => trace.y)"
    )
    assert [one + other for one, other in zip(up, down, strict=True)] == gains
    assert min(up) == max(down) == 0
    assert problems(browser) == []


@pytest.mark.parametrize("series", [[], [{"name": "s", "x": [0, 1, 2, 3, 4], "y": [None] * 5}]])
def test_charts_without_values_are_drawn(browser, tmp_path, series):
    made = document(clients=12)
    panels = [chart(kind, kind, kind, "x", "y", series) for kind in MARKS]
    views = [{"name": "", "charts": panels}]
    made["sections"] = [{"id": "none", "title": "n", "lead": "", "views": views}]
    browser.get(write(tmp_path, made))
    draw_all(browser)
    assert problems(browser) == []


def test_views_are_chosen(browser, page):
    browser.get(page)
    browser.find_element(By.CSS_SELECTOR, "#section-convergence .tab:nth-of-type(2)").click()
    assert texts(browser, "#section-convergence h3") == ["Accuracy against MB"]
    until(browser, "document.querySelector('#section-convergence .main-svg') !== null")
    assert texts(browser, "#section-convergence .xtitle") == ["MB"]


def test_a_method_has_one_colour(browser, page):
    browser.get(page)
    draw_all(browser)
    colours = browser.execute_script(
        """const of = (id) => document.querySelector(`#chart-${id} .picture`).data;
        const boxes = of("comparison-boxes").filter((trace) => trace.type === "box");
        const lines = of("convergence-rounds").filter((trace) => trace.name);
        return [boxes.toReversed(), lines].map((all) => all.map((trace) => trace.line.color));"""
    )
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == 6


def test_more_series_than_colours_differ_in_another_way(browser, tmp_path):
    made = document(clients=12)
    series = [{"name": f"s{one}", "x": [1, 2], "y": [one, one]} for one in range(20)]
    panels = [chart(kind, kind, kind, "x", "y", series) for kind in ("lines", "points", "bars")]
    made["sections"] = [
        {"id": "many", "title": "m", "lead": "", "views": [{"name": "", "charts": panels}]}
    ]
    browser.get(write(tmp_path, made))
    draw_all(browser)
    looks = browser.execute_script(
        """const of = (id) => document.querySelector(`#chart-${id} .picture`).data;
        return [
          of("lines").map((trace) => [trace.line.color, trace.line.dash]),
          of("points").map((trace) => [trace.marker.color, trace.marker.symbol]),
          of("bars").map((trace) => [trace.marker.color, trace.marker.pattern.shape])];"""
    )
    for kind in looks:
        assert len({tuple(look) for look in kind}) == 20
        assert len({colour for colour, _ in kind}) == 8


# --- Clients --------------------------------------------------------------------------------------


def choose_run(browser, made, row, seed):
    wanted = f"{row} · seed {seed}"
    Select(browser.find_element(By.CSS_SELECTOR, "#clients select")).select_by_visible_text(wanted)
    return next(run for run in made["clients"]["runs"] if (run["row"], run["seed"]) == (row, seed))


def sort_by(browser, name):
    browser.execute_script(
        """[...document.querySelectorAll("#clients thead button")]
        .find((button) => button.textContent.replace(/ [↑↓]$/, "") === arguments[0]).click()""",
        name,
    )


def test_the_table_has_what_the_run_says(browser, page, made):
    browser.get(page)
    run = choose_run(browser, made, "fedem", 1)
    clients = made["clients"]
    alone = next(one for one in clients["runs"] if (one["row"], one["seed"]) == ("local", 1))
    assert cells(browser, 0)[11] == "client 11 held out"
    shown = range(25)
    sizes = [clients[name] for name in ("train", "validation", "test")]
    assert [number(cell) for cell in cells(browser, 1)] == [
        sum(size[one] for size in sizes) for one in shown
    ]
    assert cells(browser, 2) == clients["true_groups"]["concept"][:25]
    assert cells(browser, 3) == run["found"][:25]
    assert [number(cell) for cell in cells(browser, 4)] == pytest.approx(
        [100 * sure for sure in run["sure"][:25]], abs=0.51
    )
    assert [number(cell) for cell in cells(browser, 5)] == pytest.approx(
        [100 * score for score in run["scores"][:25]], abs=0.051
    )
    gains = [100 * (run["scores"][one] - alone["scores"][one]) for one in shown]
    assert [number(cell) for cell in cells(browser, 6)] == pytest.approx(gains, abs=0.051)
    assert all(cell[0] in f"+{MINUS}0" for cell in cells(browser, 6))
    assert cells(browser, 7)[5] == "–"  # fedavg has no score there


def test_every_column_is_sorted_and_all_pages_are_reached(browser, page, made):
    browser.get(page)
    clients = made["clients"]
    run = choose_run(browser, made, "ifca", 0)

    def all_ids():
        found = []
        while True:
            found += texts(browser, "#clients tbody a")
            button = browser.find_element(
                By.XPATH, "//section[@id='clients']//button[text()='Next ›']"
            )
            if not button.is_enabled():
                return found
            browser.execute_script("arguments[0].click()", button)

    size = [
        sum(clients[name][one] for name in ("train", "validation", "test")) for one in range(60)
    ]
    keys = {
        "examples": size,
        "how sure": run["sure"],
        "accuracy, %": run["scores"],
    }
    for name, exact in keys.items():
        values = [float(f"{value:.6g}") for value in exact]
        for downwards in (True, False):  # numbers: the highest first, then the lowest
            sort_by(browser, name)
            order = sorted(range(60), key=values.__getitem__, reverse=downwards)
            assert all_ids() == [clients["id"][one] for one in order], name
    groups = clients["true_groups"]["concept"]
    up = ["labels swapped", "turned by 90°", "turned by 180°", "upright"]  # 90 comes before 180
    sort_by(browser, "true concept")
    order = sorted(range(60), key=lambda one: up.index(groups[one]))
    assert all_ids() == [clients["id"][one] for one in order]
    sort_by(browser, "client")
    assert all_ids() == clients["id"]  # 9 comes before 10
    sort_by(browser, "client")
    focused = browser.execute_script("return document.activeElement.textContent")
    assert focused == "client ↓"  # the keyboard is still where it was
    assert all_ids() == clients["id"][::-1]
    sorted_head = browser.find_elements(By.CSS_SELECTOR, "#clients th[aria-sort=descending]")
    assert [head.text for head in sorted_head] == ["client ↓"]


def test_clients_without_a_value_are_last(browser, page, made):
    browser.get(page)
    choose_run(browser, made, "fedavg", 0)
    last = browser.find_element(By.XPATH, "//section[@id='clients']//button[text()='Next ›']")
    for _ in range(2):
        sort_by(browser, "accuracy, %")
        for _ in range(2):
            browser.execute_script("arguments[0].click()", last)
        assert cells(browser, 0)[-1] == "client 5"


@pytest.mark.parametrize("by", ["id", "group", "found", "label", "held out", "nothing"])
def test_search(browser, page, made, by):
    browser.get(page)
    clients = made["clients"]
    run = choose_run(browser, made, "fedem", 0)
    wanted, expected = {
        "id": ("ClienT 17", [17]),
        "group": ("by 90", [one for one in range(60) if one % 4 == 1]),
        "found": ("model 2", [one for one in range(60) if run["found"][one] == "model 2"]),
        "label": ("digit 3", [one for one in range(60) if clients["label_shares"][one][3] >= 0.05]),
        "held out": ("held out", [11, 23, 35, 47, 59]),
        "nothing": ("no such client", []),
    }[by]
    browser.find_element(By.CSS_SELECTOR, "#clients input").send_keys(wanted)
    assert texts(browser, "#clients tbody a") == [clients["id"][one] for one in expected[:25]]
    count = texts(browser, "#clients .count")[0]
    assert count == "nothing found" if by == "nothing" else count.endswith(f"of {len(expected)}")


def test_a_card_opens_by_the_keyboard_and_has_the_numbers(browser, page, made):
    browser.get(page)
    clients = made["clients"]
    browser.find_element(By.CSS_SELECTOR, "#clients input").send_keys("client 7")
    browser.find_element(By.CSS_SELECTOR, "#clients tbody a").send_keys(Keys.ENTER)
    until(browser, "document.getElementById('card').open")
    assert texts(browser, "#card-title") == ["client 7"]
    assert browser.execute_script("return location.hash") == "#client=client%207"
    assert texts(browser, "#card .lead") == [clients["apart"][7]]
    assert texts(browser, "#card .verdict") == [clients["verdict"][7]]
    assert texts(browser, "#card .diagnosed") == [clients["diagnosed"][7]]
    facts = texts(browser, "#card dd")
    assert [number(fact) for fact in facts[:3]] == [
        clients[name][7] for name in ("train", "validation", "test")
    ]
    assert facts[3] == clients["true_groups"]["concept"][7]
    scores = {}
    for run in clients["runs"]:
        scores.setdefault(run["row"], []).append(100 * run["scores"][7])
    rows = browser.find_elements(By.CSS_SELECTOR, "#card .table tbody tr")
    for row, (name, own) in zip(rows, scores.items(), strict=True):
        shown, *figures = (cell.text for cell in row.find_elements(By.TAG_NAME, "td"))
        against = [
            None if name == other else np.mean(own) - np.mean(scores[other])
            for other in ("local", "fedavg")
        ]
        assert shown == name
        for figure, expected in zip(figures, [*own, np.mean(own), *against], strict=True):
            assert number(figure) == (
                None if expected is None else pytest.approx(expected, abs=0.051)
            )
    weights = clients["runs"][-1]["weights"]["values"][7]
    mixture = texts(browser, "#card .mixture small")[-1]
    assert mixture.startswith(f"model {np.argmax(weights)} {max(weights):.0%}")
    signs = {"gain": "+", "loss": MINUS}
    for kind, sign in signs.items():
        assert all(text.startswith(sign) for text in texts(browser, f"#card .{kind}"))
    until(browser, "document.querySelector('#card .main-svg') !== null")
    labels = browser.execute_script("return document.querySelector('#card .picture').data")
    assert labels[0]["y"] == pytest.approx([100 * s for s in clients["label_shares"][7]], rel=1e-5)
    members = [one for one in range(60) if not clients["held_out"][one]]
    size = np.array(clients["train"])[members]
    shares = np.array(clients["label_shares"])[members]
    assert labels[1]["y"] == pytest.approx((100 * size @ shares / size.sum()).tolist(), rel=1e-5)
    browser.back()
    until(browser, "!document.getElementById('card').open")
    browser.forward()
    until(browser, "document.getElementById('card').open")
    browser.find_element(By.CSS_SELECTOR, "#card .close").send_keys(Keys.ESCAPE)
    until(browser, "!document.getElementById('card').open")
    assert browser.execute_script("return location.hash") == ""
    assert problems(browser) == []


def test_an_address_leads_to_a_client(browser, page):
    browser.get(page + "#client=client%2042")
    until(browser, "document.getElementById('card').open")
    assert texts(browser, "#card-title") == ["client 42"]
    browser.get("about:blank")
    browser.get(page + "#client=nobody%")
    assert browser.execute_script("return document.getElementById('card').open") is False
    assert problems(browser) == []


def test_a_click_on_a_row_opens_its_card(browser, page):
    browser.get(page)
    browser.execute_script(
        "document.querySelector('#clients tbody tr:nth-child(4) td:nth-child(3)').click()"
    )
    until(browser, "document.getElementById('card').open")
    assert texts(browser, "#card-title") == ["client 3"]


def test_lower_is_better_turns_gains(browser, tmp_path):
    made = document(clients=12)
    clients = made["clients"]
    clients.update(criterion="loss", is_share=False, higher_is_better=False)
    browser.get(write(tmp_path, made))
    run = choose_run(browser, made, "fedem", 0)
    gains = [
        alone - own for alone, own in zip(clients["runs"][0]["scores"], run["scores"], strict=True)
    ]
    assert [number(cell) for cell in cells(browser, 6)] == pytest.approx(gains, abs=0.00051)


# --- Tables and heat maps -------------------------------------------------------------------------


def test_tables_are_sorted_and_the_best_is_emphasised(browser, page, made):
    browser.get(page)
    table = made["sections"][0]["views"][0]["tables"][0]
    within = "#section-comparison"
    best = [max(row[1] for row in table["rows"]), max(row[3] for row in table["rows"])]
    least = min(row[4] for row in table["rows"] if row[4] is not None)
    strong = sorted(float(text) for text in texts(browser, f"{within} strong"))
    assert strong == sorted(round(figure, 1) for figure in [*best, least])
    browser.find_element(By.CSS_SELECTOR, f"{within} th:nth-child(5) button").click()
    known = sorted((row for row in table["rows"] if row[4] is not None), key=lambda row: -row[4])
    assert cells(browser, 0, within) == [row[0] for row in known] + ["local"]
    assert cells(browser, 4, within)[-1] == "–"


def test_the_order_of_a_heat_map_is_chosen(browser, tmp_path):
    made = document(clients=24)
    drawn = made["sections"][2]["views"][0]["charts"][0]
    browser.get(write(tmp_path, made))
    draw_all(browser)
    select = Select(browser.find_element(By.CSS_SELECTOR, "#chart-clients-by-models select"))
    assert [option.text for option in select.options] == list(drawn["orders"])
    for name, order in drawn["orders"].items():
        select.select_by_visible_text(name)
        names = [drawn["panel"]["series"][line]["name"] for line in order]
        assert texts(browser, "#chart-clients-by-models .yaxislayer-above .ytick") == names
        picture = browser.execute_script(
            """const { data } = document.querySelector("#chart-clients-by-models .picture");
            return data.filter((trace) => trace.type === "heatmap")
              .map(({ z, hovertext }) => ({ z, hovertext }))"""
        )
        first = drawn["panel"]["series"][order[0]]["y"]
        assert picture[0]["z"][0] == pytest.approx(first, rel=1e-5)
        for strip, column in zip(drawn["strips"], picture[1:], strict=True):
            shown = [line[0].split("<br>")[1] for line in column["hovertext"]]
            values = [strip["values"][line] or "–" for line in order]
            assert shown == [f"{strip['name']}: {value}" for value in values]
            assert [line[0] is None for line in column["z"]] == [value == "–" for value in values]


# --- What one sees --------------------------------------------------------------------------------


def background(browser):
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


LIGHT, DARK = "rgb(253, 253, 251)", "rgb(20, 23, 27)"


def test_dark_by_the_system_and_by_the_button(browser, page):
    browser.get(page)
    assert background(browser) == LIGHT
    until(browser, "document.querySelector('.picture .main-svg') !== null")
    ink = "document.querySelector('.picture .xtick text').style.fill"
    before = browser.execute_script(f"return {ink}")
    browser.find_element(By.ID, "theme").click()
    assert background(browser) == DARK
    until(browser, f"{ink} !== {json.dumps(before)}")
    browser.find_element(By.ID, "theme").click()
    assert background(browser) == LIGHT
    until(browser, f"{ink} === {json.dumps(before)}")
    browser.get("about:blank")
    emulate(browser, "dark")
    browser.get(page)
    assert background(browser) == DARK
    browser.find_element(By.ID, "theme").click()
    assert background(browser) == LIGHT


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, page):
    resize(browser, 390, 844)
    browser.get(page)
    draw_all(browser)
    assert browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]") == [
        390,
        390,
    ]
    wide = browser.execute_script(
        """return [...document.querySelectorAll(".picture .main-svg")]
        .filter((drawing) => drawing.getBoundingClientRect().right > 390).length"""
    )
    assert wide == 0
    table = browser.find_element(By.CSS_SELECTOR, "#clients .table-box")
    assert browser.execute_script(
        "return arguments[0].scrollWidth > arguments[0].clientWidth", table
    )
    browser.get(page + "#client=client%203")
    until(browser, "document.getElementById('card').open")
    until(browser, "document.querySelector('#card .main-svg') !== null")
    card = (
        "const card = document.getElementById('card'); return [card.clientWidth, card.scrollWidth]"
    )
    inside, all_of_it = browser.execute_script(card)
    assert all_of_it <= inside <= 390


def test_charts_fit_a_window_that_is_made_smaller(browser, page):
    browser.get(page)
    until(browser, "document.querySelector('.picture .main-svg') !== null")
    resize(browser, 700)
    until(
        browser,
        "(({ clientWidth: width, _fullLayout }) => width < 700 && _fullLayout.width === width)"
        "(document.querySelector('.picture'))",
    )


def test_all_is_drawn_in_light_colours_before_printing(browser, page):
    browser.get(page)
    browser.find_element(By.ID, "theme").click()
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    emulate(browser, media="print")
    drawings = browser.execute_script(
        """return [...document.querySelectorAll("main .picture")].map((picture) => ({
          width: picture.querySelector(".main-svg").getBoundingClientRect().width,
          ink: picture._fullLayout.font.color}))"""
    )
    assert len(drawings) == 12
    assert {one["width"] for one in drawings} == {640}
    assert {one["ink"] for one in drawings} == {"rgb(86, 92, 102)"}
    assert background(browser) == "rgb(255, 255, 255)"
    controls = browser.find_elements(By.CSS_SELECTOR, "button, select, input, nav")
    assert not any(control.is_displayed() for control in controls if control.tag_name != "button")
    assert not browser.find_element(By.ID, "theme").is_displayed()
    emulate(browser)
    browser.execute_script("dispatchEvent(new Event('afterprint'))")
    until(
        browser,
        "document.querySelector('.picture')._fullLayout.font.color === 'rgb(169, 175, 184)'",
    )


# --- Files ----------------------------------------------------------------------------------------


def downloaded(browser, folder, id, kind):
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    browser.execute_script(
        """[...document.querySelectorAll(`#chart-${arguments[0]} button`)]
        .find((button) => button.textContent === arguments[1]).click()""",
        id,
        kind.upper(),
    )
    file = folder / f"{id}.{kind}"
    for _ in range(200):
        if file.exists() and file.stat().st_size:
            return file
        time.sleep(0.05)
    pytest.fail(f"{file.name} was not downloaded")


@pytest.mark.parametrize("id", ["convergence-rounds", "labels-by-models", "novelty"])
def test_numbers_are_downloaded(browser, page, made, tmp_path, id):
    browser.get(page)
    charts = (one for all in made["sections"] for view in all["views"] for one in view["charts"])
    panel = next(one["panel"] for one in charts if one["id"] == id)
    expected = list(csv.reader(io.StringIO(to_csv([panel]))))
    rows = list(csv.reader(io.StringIO(downloaded(browser, tmp_path, id, "csv").read_text())))
    assert rows[0] == expected[0]
    for row, wanted in zip(rows[1:], expected[1:], strict=True):
        for cell, other in zip(row, wanted, strict=True):
            assert cell == other or float(cell) == pytest.approx(float(other), rel=1e-5)


def test_a_picture_is_downloaded(browser, page, made, tmp_path):
    browser.get(page)
    root = ET.parse(downloaded(browser, tmp_path, "convergence-rounds", "svg")).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = {"".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Accuracy against rounds", "rounds", "accuracy, %", "local", "fedconceptem"} <= words


# --- Names are text -------------------------------------------------------------------------------


def hostile_document():
    ids = [f"{HOSTILE[one % len(HOSTILE)]} {one}" for one in range(24)]
    made = document(24, 2, methods=HOSTILE, classes=HOSTILE, groups=HOSTILE, ids=ids)
    for text in ("title", "headline", "made"):
        made[text] += "".join(HOSTILE)
    made["facts"] = {name: name for name in HOSTILE}
    made["warnings"] = list(HOSTILE)
    made["absent"] = [{"title": name, "reason": name} for name in HOSTILE]
    for section in made["sections"]:
        section["title"] = section["lead"] = HOSTILE[0] + HOSTILE[2]
        for view in section["views"]:
            view["name"] += HOSTILE[1]
            for one in view["charts"]:
                one["caption"] = HOSTILE[1]
                panel = one["panel"]
                panel["title"] = panel["x_label"] = panel["y_label"] = HOSTILE[2]
            for gallery in view.get("galleries", []):
                gallery["images"][0]["caption"] = HOSTILE[0]
    return made


def in_a_chart(name):
    """Control characters have pictures there; Chromium shows half characters as U+FFFD."""
    pictures = re.sub("[\x00-\x1f]", lambda found: chr(0x2400 + ord(found[0])), name)
    return re.sub("[\ud800-\udfff]", "\ufffd", pictures)


INJECTED = """return [
  window.injected, document.querySelectorAll("b, i, img[src='x'], a[href^='javascript']").length,
  document.querySelectorAll("body > script").length]"""


def test_names_are_text_everywhere(browser, tmp_path):
    made = hostile_document()
    page = write(tmp_path, made)
    browser.get(page)
    draw_all(browser)
    clean = [None, 0, 3]
    assert browser.execute_script(INJECTED) == clean
    # selenium itself cannot carry half characters
    plain = [name for name in HOSTILE if "\ud800" not in name]
    shown = texts(browser, "header dd")
    assert shown[: len(plain)] == plain
    assert texts(browser, "#clients tbody a")[:5] == made["clients"]["id"][:5]
    legend = texts(browser, "#chart-convergence-rounds .legendtext")
    assert legend == [in_a_chart(name) for name in HOSTILE]
    ticks = texts(browser, "#chart-comparison-boxes .ytick")
    assert [tick.rstrip("…") for tick in ticks] == [in_a_chart(name)[:21] for name in HOSTILE[::-1]]
    assert texts(browser, "#chart-convergence-rounds .xtitle") == [HOSTILE[2]]
    for id, lines in {
        "map": [in_a_chart(made["clients"]["id"][0]), HOSTILE[0]],
        "convergence-rounds": [HOSTILE[0]],
        "clients-by-models": [],
    }.items():
        words = hovered(browser, id)
        assert all(line in words for line in lines), (id, words)
        assert any(HOSTILE[2] in word for word in words), (id, words)
    assert browser.execute_script(INJECTED) == clean
    assert problems(browser) == []


def hovered(browser, id):
    """What is told where one points at a chart's first value, or into the middle of a heat map."""
    is_heat_map = browser.execute_script(
        """const picture = document.querySelector(`#chart-${arguments[0]} .picture`);
        picture.scrollIntoView({ behavior: "instant" });
        const curveNumber = picture.data.findIndex((trace) => trace.hovertext);
        if (picture.data[curveNumber].type === "heatmap") return true;
        Plotly.Fx.hover(picture, [{ curveNumber, pointNumber: 0 }]);""",
        id,
    )
    if is_heat_map:
        area = browser.find_element(By.CSS_SELECTOR, f"#chart-{id} .xy .nsewdrag")
        ActionChains(browser).move_to_element(area).perform()
    path = f"#chart-{id} .hoverlayer .hovertext"
    until(browser, f"document.querySelector({json.dumps(path)}) !== null")
    return texts(browser, f"{path} tspan.line")


def test_cards_of_hostile_names_open(browser, tmp_path):
    made = hostile_document()
    browser.get(write(tmp_path, made))
    for client in range(len(HOSTILE)):
        link = browser.find_elements(By.CSS_SELECTOR, "#clients tbody a")[client]
        link.send_keys(Keys.ENTER)
        wanted = json.dumps(made["clients"]["id"][client])
        until(browser, f"document.getElementById('card-title')?.textContent === {wanted}")
        until(browser, "document.querySelector('#card .main-svg') !== null")
        assert browser.execute_script(INJECTED) == [None, 0, 3]
        browser.find_element(By.CSS_SELECTOR, "#card .close").click()
        until(browser, "!document.getElementById('card').open")
    assert problems(browser) == []


def test_files_of_hostile_names(browser, tmp_path):
    browser.get(write(tmp_path, hostile_document()))
    rows = list(csv.reader(io.StringIO(downloaded(browser, tmp_path, "shares", "csv").read_text())))
    assert {row[0] for row in rows[1:]} == {HOSTILE[2]}
    root = ET.parse(downloaded(browser, tmp_path, "convergence-rounds", "svg")).getroot()
    words = ["".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {in_a_chart(name) for name in HOSTILE} <= set(words)
    tags = {one.tag.split("}")[1] for one in root.iter()}
    assert not tags & {"script", "a", "foreignObject", "img"}


def test_the_policy_keeps_everything_out(browser, page, tmp_path):
    """What would be there if a name did become an element."""
    browser.get(page)
    browser.execute_script(
        """const script = document.createElement("script");
        script.textContent = "window.injected = 1";
        document.body.append(script);
        const image = document.createElement("img");
        image.src = "https://example.org/x.png";
        document.body.append(image);"""
    )
    assert browser.execute_script("return window.injected") is None
    blocked = [entry["message"] for entry in browser.get_log("browser")]
    assert len([line for line in blocked if "Content Security Policy" in line]) == 2
    refused = "return fetch(arguments[0]).then(() => 'loaded', () => 'refused')"
    assert browser.execute_script(refused, (tmp_path / "x").as_uri()) == "refused"


# --- Without a browser ----------------------------------------------------------------------------


def data_of(text):
    block = re.search(r'<script type="application/json" id="document">(.*?)</script>', text)
    assert not set("<>&\u2028\u2029") & set(block[1])
    return json.loads(block[1])


def test_numbers_are_short_and_those_that_are_none_are_null():
    made = document(clients=4)
    scores = made["clients"]["runs"][0]["scores"]
    scores[:] = [1 / 3, float("nan"), float("inf"), np.float32(0.5)]
    made["clients"]["train"][0] = np.int64(7)
    clients = data_of(render(made))["clients"]
    assert clients["runs"][0]["scores"] == [0.333333, None, None, 0.5]
    assert clients["train"][0] == 7
    assert clients["held_out"] == [False] * 4


def test_x_is_written_once():
    made = document(clients=4)
    series = data_of(render(made))["sections"][2]["views"][0]["charts"][0]["panel"]["series"]
    assert ["x" in one for one in series] == [True, False, False, False]
    curves = data_of(render(made))["sections"][1]["views"][1]["charts"][0]["panel"]["series"]
    assert all("x" in one for one in curves)  # each has bytes of its own


def test_any_text_can_be_written():
    text = render(hostile_document())
    assert text.encode()
    assert text.count("<script") == text.count("</script>") == 3
    assert re.search("(src|href)=[\"']?https?:", text.split('id="document"')[0]) is None


def test_a_report_of_nothing_opens(browser, tmp_path):
    made = document(clients=12)
    made |= {
        "sections": [],
        "clients": None,
        "absent": [],
        "repeat": [],
        "warnings": [],
        "facts": {},
    }
    browser.get(write(tmp_path, made))
    assert texts(browser, "h2") == ["Details"]
    assert problems(browser) == []
