"use strict";

// A panel as what the charts' library draws: traces, and their part of the layout. `frame` is
// { width, look(name),
// colour(variable), order and strips of a heat map }.

const LONGEST_LABEL = 22; // characters beside an axis
const LONGEST_FLAT_LABEL = 5; // characters of names that are rather left out than turned
const CHARACTER = 7; // pixels, about
const LINE = 20; // pixels, likewise
const MOST_MARKERS = 60; // points of a line that are marked
const MOST_BARS = 3000; // that are drawn one by one

// The library reads a little HTML in all its texts, and templates in some: names are shown as they
// are, and characters that no SVG file may hold as their pictures.
function literal(text) {
  return wellFormed(String(text))
    .replace(/[\0-\x1f]/g, (found) => String.fromCharCode(0x2400 + found.charCodeAt(0)))
    .replace(/[\x7f-\x9f\ufffe\uffff]/g, "\ufffd")
    .replaceAll("&", "&amp;")
    .replaceAll("<", "&lt;")
    .replaceAll(">", "&gt;");
}

function label(name) {
  const characters = Array.from(String(name));
  return literal(
    characters.length > LONGEST_LABEL ? characters.slice(0, LONGEST_LABEL - 1).join("") + "…" : name
  );
}

function hover(...lines) {
  return lines.filter((line) => line !== null && line !== "").join("<br>");
}

function valued(name, value) {
  return literal(name ? `${name}: ${value}` : value);
}

function shownX(x) {
  return isNumber(x) ? short(x) : x;
}

// Names stand at 0, 1, 2, … and not on a "category" axis, where names that look like numbers or
// dates are taken for such. Long names are turned; where all do not fit, every second one is shown,
// or every fifth, …
function namedAxis(names, room = Infinity) {
  const [, widest] = extent(names.map((name) => String(name).length));
  const longest = Math.min(Math.max(widest, 1), LONGEST_LABEL);
  const flat = longest * CHARACTER + 10;
  const turned = names.length * flat > room && longest > LONGEST_FLAT_LABEL;
  const step = tickStep((names.length * (turned ? LINE : flat)) / room);
  const shown = names.map((_, index) => index).filter((index) => index % step === 0);
  return {
    type: "linear",
    tickvals: shown,
    ticktext: shown.map((index) => label(names[index])),
    tickangle: turned ? -45 : 0,
    range: [-0.6, names.length - 0.4],
    showgrid: false,
    zeroline: false,
  };
}

function tickStep(least) {
  let power = 1;
  while (least > 10 * power) power *= 10;
  return [1, 2, 5, 10].map((one) => one * power).find((step) => step >= least);
}

function distinctX(series) {
  return [...new Set(series.flatMap((one) => one.x.map(String)))];
}

// Where numbers are on x, they are the places; other values have places in the order of appearance.
function places(series, width) {
  if (series.every((one) => one.x.every(isNumber))) return { at: (x) => x, axis: {} };
  const names = distinctX(series);
  const index = new Map(names.map((name, number) => [name, number]));
  return { at: (x) => index.get(String(x)), axis: namedAxis(names, width) };
}

function knownIndices(one) {
  return one.y.map((_, index) => index).filter((index) => isNumber(one.y[index]));
}

function lines(panel, frame) {
  const { at, axis } = places(panel.series, frame.width);
  const drawn = panel.series.map((one, number) => {
    const known = knownIndices(one);
    // Deviations may be given for known values only.
    const spread = known.map((index, rank) =>
      one.spread?.[one.spread.length === one.y.length ? index : rank]
    );
    return { one, known, spread, look: frame.look(one.name), group: String(number) };
  });
  const bands = drawn.filter(({ one }) => one.spread).map((line) => band(line, at));
  const strokes = drawn.map(({ one, known, spread, look, group }) => ({
    type: "scatter",
    mode: known.length > MOST_MARKERS ? "lines" : "lines+markers",
    name: literal(one.name),
    legendgroup: group,
    x: known.map((index) => at(one.x[index])),
    y: known.map((index) => one.y[index]),
    line: { color: look.colour, width: 2, dash: look.dash },
    marker: { color: look.colour, size: 5, symbol: look.marker },
    hoverinfo: "text",
    hovertext: known.map((index, rank) => {
      const deviation = isNumber(spread[rank]) ? ` ± ${short(spread[rank])}` : "";
      return hover(
        literal(one.name),
        valued(panel.y_label, short(one.y[index]) + deviation),
        valued(panel.x_label, shownX(one.x[index]))
      );
    }),
  }));
  return { data: [...bands, ...strokes], layout: { xaxis: axis } };
}

function band({ one, known, spread, look, group }, at) {
  const x = known.map((index) => at(one.x[index]));
  const edge = (sign) => known.map((index, rank) => one.y[index] + sign * (spread[rank] ?? 0));
  return {
    type: "scatter",
    mode: "lines",
    x: [...x, ...x.toReversed()],
    y: [...edge(1), ...edge(-1).toReversed()],
    fill: "toself",
    fillcolor: transparent(look.colour, 0.16),
    line: { width: 0 },
    hoverinfo: "skip",
    showlegend: false,
    legendgroup: group,
  };
}

function bars(panel, frame) {
  const { names, traces } = barTraces(panel, frame);
  const xaxis = namedAxis(names, frame.width - 80);
  const bargap = names.length > 40 ? 0.05 : 0.25;
  const layout = { barmode: "group", bargap, xaxis, yaxis: { zeroline: true } };
  if (traces.length > 1) return { data: traces, layout };
  const parts = traces.flatMap((trace) => (hasBothSigns(trace.y) ? bySign(trace, frame) : trace));
  return { data: isMany(traces) ? parts.map((trace) => areaOf(trace, {})) : parts, layout };
}

function stacked(panel, frame) {
  const { names, traces } = barTraces(panel, frame);
  const xaxis = namedAxis(names, frame.width - 80);
  const line = { width: names.length > 60 ? 0 : 0.5, color: frame.colour("paper") };
  for (const trace of traces) trace.marker.line = line;
  const legend = { traceorder: "normal" };
  const layout = { barmode: "stack", bargap: 0.1, xaxis, yaxis: sharesAxis(panel), legend };
  const onEachOther = { stackgroup: "all", fill: "tonexty" };
  const data = isMany(traces) ? traces.map((trace) => areaOf(trace, onEachOther)) : traces;
  return { data, layout };
}

function barTraces(panel, frame) {
  const names = distinctX(panel.series);
  const index = new Map(names.map((name, number) => [name, number]));
  const traces = panel.series.map((one) => {
    const look = frame.look(one.name);
    return {
      type: "bar",
      name: literal(one.name),
      x: one.x.map((x) => index.get(String(x))),
      y: one.y,
      marker: {
        color: look.colour,
        line: { width: 0 },
        pattern: { shape: look.hatch, fgcolor: frame.colour("paper"), fillmode: "overlay" },
      },
      textposition: "none",
      hoverinfo: "text",
      hovertext: one.y.map((y, place) =>
        hover(
          literal(one.name),
          valued(panel.x_label, shownX(one.x[place])),
          valued(panel.y_label, short(y))
        )
      ),
    };
  });
  return { names, traces };
}

function hasBothSigns(values) {
  const [low, high] = extent(values);
  return low < 0 && high > 0;
}

// Gains and losses have colours of their own.
function bySign(trace, frame) {
  const part = (variable, belongs) => ({
    ...trace,
    y: trace.y.map((y) => (belongs(y) ? y : 0)),
    marker: { ...trace.marker, color: frame.colour(variable) },
    offsetgroup: "same",
    showlegend: false,
  });
  return [part("gain", (y) => y > 0), part("loss", (y) => y < 0)];
}

function isMany(traces) {
  return traces.reduce((sum, trace) => sum + trace.x.length, 0) > MOST_BARS;
}

// Thousands of bars are drawn as the area that they fill, which is much faster.
function areaOf(trace, others) {
  return {
    ...trace,
    type: "scatter",
    mode: "lines",
    line: { shape: "hvh", width: 0.5, color: trace.marker.color },
    fill: "tozeroy",
    fillcolor: trace.marker.color,
    hoveron: "points",
    ...others,
  };
}

// Bars that are shares fill the picture.
function sharesAxis(panel) {
  const totals = new Map();
  for (const one of panel.series) {
    one.x.forEach((x, place) => totals.set(x, (totals.get(x) ?? 0) + (one.y[place] ?? 0)));
  }
  return [...totals.values()].every((total) => Math.abs(total - 1) < 0.01) ? { range: [0, 1] } : {};
}

function points(panel, frame) {
  const { at, axis } = places(panel.series, frame.width);
  const count = panel.series.reduce((sum, one) => sum + one.y.length, 0);
  const data = panel.series.map((one) => {
    const known = knownIndices(one);
    const look = frame.look(one.name);
    return {
      type: "scatter",
      mode: "markers",
      name: literal(one.name),
      x: known.map((index) => at(one.x[index])),
      y: known.map((index) => one.y[index]),
      marker: {
        color: look.colour,
        symbol: look.marker,
        size: count > 400 ? 5 : 9,
        opacity: count > 400 ? 0.6 : 0.85,
        line: { width: count > 400 ? 0 : 1, color: frame.colour("paper") },
      },
      hoverinfo: "text",
      hovertext: known.map((index) =>
        hover(
          one.names ? literal(one.names[index]) : null,
          literal(one.name),
          valued(panel.x_label, shownX(one.x[index])),
          valued(panel.y_label, short(one.y[index]))
        )
      ),
    };
  });
  return { data, layout: { xaxis: axis } };
}

function histogram(panel, frame) {
  const data = panel.series.map((one) => {
    const look = frame.look(one.name);
    const bins = one.y.map((_, bin) => bin);
    return {
      type: "bar",
      name: literal(one.name),
      x: bins.map((bin) => (one.x[bin] + one.x[bin + 1]) / 2),
      width: bins.map((bin) => one.x[bin + 1] - one.x[bin]),
      y: one.y.map((count) => count || null), // empty bins have no outline
      marker: {
        color: transparent(look.colour, 0.5),
        line: { width: 1, color: look.colour },
        pattern: { shape: look.hatch, fgcolor: look.colour, fillmode: "overlay" },
      },
      textposition: "none",
      hoverinfo: "text",
      hovertext: bins.map((bin) =>
        hover(
          literal(one.name),
          valued(panel.x_label, `${short(one.x[bin])} to ${short(one.x[bin + 1])}`),
          valued(panel.y_label, short(one.y[bin]))
        )
      ),
    };
  });
  return { data, layout: { barmode: "overlay", bargap: 0 } };
}

// Boxes lie, so that names are read as they are written. What one points at is a clear bar over the
// whole box.
function boxes(panel, frame) {
  const series = panel.series.toReversed(); // the first at the top
  const drawn = series.flatMap((one, place) => {
    const { colour } = frame.look(one.name);
    const [low, quarter, middle, threeQuarters, high] = one.y;
    const box = {
      type: "box",
      orientation: "h",
      y: [place],
      lowerfence: [low],
      q1: [quarter],
      median: [middle],
      q3: [threeQuarters],
      upperfence: [high],
      line: { color: colour, width: 2 },
      fillcolor: transparent(colour, 0.25),
      width: 0.55,
      hoverinfo: "skip",
      showlegend: false,
    };
    const target = {
      type: "bar",
      orientation: "h",
      y: [place],
      base: [low],
      x: [high - low],
      width: 0.8,
      marker: { color: "rgba(0,0,0,0)" },
      textposition: "none",
      hoverinfo: "text",
      hovertext: [
        hover(
          literal(one.name),
          ...one.x.map((level, rank) => literal(`${percent(level)}: ${short(one.y[rank])}`))
        ),
      ],
      showlegend: false,
    };
    return [box, target];
  });
  const names = namedAxis(series.map((one) => one.name));
  const layout = {
    yaxis: { ...names, ticklabelstandoff: 8, title: titled(panel.x_label) },
    xaxis: { showgrid: true, title: titled(panel.y_label) },
  };
  return { data: drawn, layout };
}

function titled(text) {
  return { text: literal(text), standoff: 10 };
}
