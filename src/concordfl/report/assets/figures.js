"use strict";

// A chart on the page: its title, its picture, its caption, and buttons. Pictures are drawn when
// they come near the window, and all of them before the page is printed.

const DRAWN_BEFORE = "600px"; // how near the window
const PRINTED_WIDTH = 640; // pixels: fits A4 and letter
const LIBRARY_SETTINGS = { displayModeBar: false, doubleClick: "reset", showTips: false };
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
const KINDS = { lines, bars, stacked, points, histogram, heatmap, boxes };

function heightOf(panel, width, isLow) {
  const count = panel.series.length;
  if (panel.kind === "heatmap") return Math.min(Math.max(120 + 20 * count, 240), 680);
  if (panel.kind === "boxes") return 80 + 38 * count;
  return isLow ? 220 : Math.min(Math.max(0.56 * width, 270), 420);
}

// Entries stand in lines of equal widths; with titles, in a column for each title, as long as the
// columns fit beside each other.
function legendLinesOf(explained, width) {
  const longest = Math.max(0, ...explained.map(({ name }) => name.replace(/&\w+;/g, "x").length));
  const perLine = Math.max(1, Math.floor((width - 70) / (longest * CHARACTER + 50)));
  const titled = explained.filter((trace) => trace.legendgrouptitle);
  if (!titled.length) return Math.ceil(explained.length / perLine);
  const groups = titled.map((trace) => trace.legendgroup);
  const columns = [...new Set(groups)].map(
    (group) => 1 + groups.filter((one) => one === group).length
  );
  const areBeside = columns.length <= perLine;
  return areBeside ? Math.max(...columns) : columns.reduce((sum, lines) => sum + lines, 0);
}

function pictureOf(panel, frame) {
  const ink = frame.colour("ink-soft");
  const axis = {
    automargin: true,
    gridcolor: frame.colour("grid"),
    zerolinecolor: frame.colour("rule"),
    linecolor: frame.colour("rule"),
    zeroline: false,
    ticks: "",
    tickfont: { size: 12 },
  };
  const { data, layout } = KINDS[panel.kind](panel, frame);
  const explained = data.filter((trace) => trace.showlegend !== false && trace.name);
  const showlegend = explained.length > 1;
  const legendLines = showlegend ? legendLinesOf(explained, frame.width) : 0;
  const axes = Object.keys(layout).filter((name) => /^xaxis\d+$/.test(name));
  return {
    data,
    layout: {
      ...layout,
      width: frame.width,
      height: heightOf(panel, frame.width, frame.isLow) + 20 * legendLines,
      margin: { l: 48, r: 14, t: 10, b: 40 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: FONT, size: 12.5, color: ink },
      hovermode: "closest",
      hoverlabel: {
        bgcolor: frame.colour("card"),
        bordercolor: frame.colour("rule"),
        font: { family: FONT, size: 12.5, color: frame.colour("ink") },
        align: "left",
        namelength: -1,
      },
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      showlegend,
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", ...layout.legend },
      xaxis: { title: titled(panel.x_label), ...axis, showgrid: false, ...layout.xaxis },
      yaxis: { title: titled(panel.y_label), ...axis, ...layout.yaxis },
      ...Object.fromEntries(axes.map((name) => [name, { ...axis, ...layout[name] }])),
    },
  };
}

function toCsv(panel) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const rows = panel.series.flatMap((one) =>
    one.y.map((y, index) => [panel.title, one.name, one.x[index], y, one.spread?.[index]])
  );
  const all = [["panel", "series", "x", "y", "spread"], ...rows];
  return all.map((row) => row.map(field).join(",") + "\n").join("");
}

class Figure {
  constructor(chart, names) {
    this.chart = chart;
    this.panel = chart.panel;
    this.orders = Object.entries(chart.orders ?? {});
    this.order = 0;
    this.drawn = false;
    const coloured = chart.panel.kind === "heatmap"
      ? (chart.strips ?? []).map((strip) => strip.values.filter((value) => value !== null))
      : [chart.panel.series.map((one) => one.name)];
    this.numbers = new Map(coloured.flatMap((all) => [...names.within(all)]));
    this.picture = element("div", {
      className: "picture",
      role: "img",
      "aria-label": `${this.panel.title}. ${chart.caption}`,
    });
    this.picture.style.minHeight = `${heightOf(this.panel, 600, chart.isLow)}px`;
    this.element = this.build();
  }

  build() {
    const order = this.orders.length > 1
      ? choice("Order", this.orders.map(([name]) => name), 0, (index) => this.reorder(index))
      : null;
    const button = (name, what, save) =>
      element("button", { type: "button", className: "small", onclick: save, title: what }, name);
    return element(
      "figure",
      { className: this.chart.strips ? "chart wide" : "chart", id: `chart-${this.chart.id}` },
      element("div", { className: "chart-head" },
        element("h3", {}, this.panel.title),
        element("div", { className: "tools control" },
          order,
          button("SVG", "Save the picture", () => this.saveSvg()),
          button("CSV", "Save the numbers", () => this.saveCsv()))),
      this.picture,
      element("figcaption", {}, this.chart.caption)
    );
  }

  frame(width, scheme) {
    return {
      width,
      scheme,
      order: this.orders[this.order]?.[1],
      strips: this.chart.strips,
      isLow: this.chart.isLow,
      look: (name) => look(this.numbers.get(name) ?? 0, scheme),
      colour: (variable) => colour(variable, scheme),
    };
  }

  draw(width = this.picture.clientWidth, scheme = currentScheme()) {
    if (width <= 0) return; // of a view that is not shown
    this.width = width;
    this.drawn = true;
    const { data, layout } = pictureOf(this.panel, this.frame(width, scheme));
    this.picture.style.minHeight = `${layout.height}px`;
    Plotly.react(this.picture, data, layout, LIBRARY_SETTINGS);
  }

  reorder(index) {
    this.order = index;
    this.draw();
  }

  resized() {
    const width = this.picture.clientWidth;
    if (this.drawn && width > 0 && Math.abs(width - this.width) > 1) this.draw();
  }

  async saveSvg() {
    const width = 800;
    const { data, layout } = pictureOf(this.panel, this.frame(width, "light"));
    const text = literal(this.panel.title);
    layout.title = { text, x: 0.02, xanchor: "left", font: { size: 15 } };
    layout.margin = { ...layout.margin, t: 56 };
    layout.height += 46;
    layout.paper_bgcolor = colour("paper", "light");
    const size = { format: "svg", width, height: layout.height };
    const address = await Plotly.toImage({ data, layout }, size);
    const svg = decodeURIComponent(address.slice(address.indexOf(",") + 1));
    download(`${this.chart.id}.svg`, "image/svg+xml", svg);
  }

  saveCsv() {
    download(`${this.chart.id}.csv`, "text/csv", toCsv(this.panel));
  }
}

class Figures {
  constructor(names) {
    this.names = names;
    this.byPicture = new Map();
    this.near = new IntersectionObserver((entries) => this.drawNear(entries), {
      rootMargin: DRAWN_BEFORE,
    });
    this.printing = false;
    this.sizes = new ResizeObserver((entries) =>
      requestAnimationFrame(() => this.fit(entries.map(({ target }) => target)))
    );
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    addEventListener("beforeprint", () => this.print());
    addEventListener("afterprint", () => {
      this.printing = false;
      this.redraw();
    });
  }

  add(chart) {
    const figure = new Figure(chart, this.names);
    this.byPicture.set(figure.picture, figure);
    this.near.observe(figure.picture);
    this.sizes.observe(figure.picture);
    return figure.element;
  }

  remove(parent) {
    for (const [picture, figure] of this.byPicture) {
      if (!parent.contains(picture)) continue;
      this.byPicture.delete(picture);
      this.near.unobserve(picture);
      this.sizes.unobserve(picture);
      if (figure.drawn) Plotly.purge(picture);
    }
  }

  drawNear(entries) {
    for (const { target, isIntersecting } of entries) {
      const figure = this.byPicture.get(target);
      if (isIntersecting && figure && !figure.drawn) figure.draw();
    }
  }

  fit(pictures) {
    if (!this.printing) pictures.forEach((picture) => this.byPicture.get(picture)?.resized());
  }

  // In new colours: those near the window at once, others when they come near.
  redraw() {
    for (const [picture, figure] of this.byPicture) {
      figure.drawn = false;
      this.near.unobserve(picture);
      this.near.observe(picture);
    }
  }

  print() {
    this.printing = true;
    for (const [picture, figure] of this.byPicture) {
      if (picture.clientWidth > 0) figure.draw(PRINTED_WIDTH, "light");
    }
  }
}
