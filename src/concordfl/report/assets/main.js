"use strict";

function withX(report) {
  for (const { views } of report.sections) {
    for (const { panel } of views.flatMap((view) => view.charts)) {
      panel.series.forEach((one, index) => (one.x ??= panel.series[index - 1].x));
    }
  }
  return report;
}

function contentsOf(main) {
  const entries = [...main.querySelectorAll(":scope > section > h2")].map((heading) => {
    const link = element("a", { href: `#${heading.parentElement.id}` }, heading.textContent);
    return { link, section: heading.parentElement };
  });
  const links = new Map(entries.map(({ link, section }) => [section, link]));
  const seen = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      links.get(target).toggleAttribute("aria-current", isIntersecting);
    }
  }, { rootMargin: "-20% 0px -75% 0px" });
  entries.forEach(({ section }) => seen.observe(section));
  return element("ol", {}, entries.map(({ link }) => element("li", {}, link)));
}

function themeButton(figures) {
  const button = document.getElementById("theme");
  const other = () => (currentScheme() === "dark" ? "light" : "dark");
  const name = () => {
    button.textContent = other() === "dark" ? "☾ Dark" : "☀ Light";
    button.setAttribute("aria-label", `Show this page in ${other()} colours`);
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = other();
    name();
    figures.redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

function start() {
  const report = withX(JSON.parse(document.getElementById("document").textContent));
  const names = new Names([...new Set((report.clients?.runs ?? []).map((run) => run.row))]);
  const figures = new Figures(names);
  const main = document.getElementById("main");
  const clients = report.clients ? new ClientsSection(report.clients, figures, names) : null;
  const parts = [
    opening(report),
    ...report.sections.map((section) => sectionOf(section, figures)),
    clients?.element,
    details(report),
    element("footer", {}, report.made),
  ];
  main.replaceChildren(...parts.filter(Boolean));
  document.getElementById("contents").append(contentsOf(main));
  themeButton(figures);
  clients?.openFromAddress();
  // Once it is painted.
  requestAnimationFrame(() => setTimeout(() => performance.mark("concordfl-shown")));
}

start();
