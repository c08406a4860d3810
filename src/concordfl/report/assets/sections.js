"use strict";

// The parts of the page, from top to bottom.

const MOST_TABS = 6;
const LONGEST_TABS = 70; // characters, of all names together

function opening(report) {
  const sentences = report.sentences.map((text) => element("p", {}, text));
  const warned = report.warnings.length;
  const notice = warned
    ? element("p", { className: "notice" },
        element("a", { href: "#details" }, warned === 1 ? "One warning" : `${warned} warnings`),
        " about these figures: see the end of this page.")
    : null;
  return element("header", { id: "top" },
    element("p", { className: "kicker" }, report.title),
    element("h1", {}, report.headline),
    element("div", { className: "sentences" }, sentences),
    factList(Object.entries(report.facts)),
    notice);
}

function sectionOf(section, figures) {
  const place = element("div", { className: "view" });
  const show = (index) => {
    figures.remove(place);
    place.replaceChildren(...viewOf(section.views[index], figures));
  };
  const names = section.views.map((view) => view.name);
  const chooser = names.length > 1 ? chooserOf(names, section, show) : null;
  const made = element("section", { id: `section-${section.id}` },
    element("h2", {}, section.title),
    element("p", { className: "lead" }, section.lead),
    chooser,
    place);
  if (names.length) show(0);
  return made;
}

function chooserOf(names, section, show) {
  const long = names.join("").length > LONGEST_TABS || names.length > MOST_TABS;
  if (long) return element("div", { className: "tools" }, choice("Show", names, 0, show));
  const group = `view-of-${section.id}`;
  const tab = (name, index) => element("label", { className: "tab" },
    element("input", {
      type: "radio",
      name: group,
      checked: index === 0,
      onchange: () => show(index),
    }),
    element("span", {}, name));
  return element("fieldset", { className: "tabs control" },
    element("legend", { className: "unseen" }, `What to show of ${section.title}`),
    names.map(tab));
}

function viewOf(view, figures) {
  const charts = view.charts.map((chart) => figures.add(chart));
  const className = charts.length > 1 ? "charts several" : "charts";
  return [
    charts.length ? element("div", { className }, charts) : null,
    ...(view.tables ?? []).map(tableOf),
    ...(view.galleries ?? []).map(galleryOf),
  ].filter((part) => part !== null);
}

function galleryOf({ title, images }) {
  const shown = images.map(({ png, caption }) =>
    element("figure", {},
      element("img", { src: `data:image/png;base64,${png}`, alt: caption, loading: "lazy" }),
      element("figcaption", {}, caption)));
  return element("div", { className: "gallery" },
    element("h3", {}, title),
    element("div", { className: "images" }, shown));
}

function details({ warnings, absent, repeat }) {
  const list = element("ul", {}, warnings.map((text) => element("li", {}, text)));
  const reasons = absent.flatMap(({ title, reason }) => [
    element("dt", {}, title),
    element("dd", {}, reason),
  ]);
  const why = element("dl", { className: "absent" }, reasons);
  return element("section", { id: "details" },
    element("h2", {}, "Details"),
    fold("Warnings", warnings.length, list),
    fold("What is not shown, and why", absent.length, why),
    fold("How to repeat each run", repeat.length, repeat.map(repeatOf)));
}

function fold(title, count, content) {
  if (!count) return null;
  return element("details", {}, element("summary", {}, `${title} (${count})`), content);
}

function repeatOf({ name, command, config, versions }) {
  return element("details", { className: "repeat" },
    element("summary", {}, name),
    element("p", {}, "Save this as a run file:"),
    element("pre", { tabIndex: 0 }, config),
    element("p", {}, "and run"),
    element("pre", { tabIndex: 0 }, command),
    element("p", {}, "It was made with"),
    factList(Object.entries(versions)));
}
