"use strict";

// Heat maps: a line for every series, from the top, in an order that the reader chooses, with
// columns of groups beside them.

const MOST_LINE_NAMES = 40;
const MOST_CELL_TEXTS = 200;
const NARROWEST_CELL_TEXT = 40; // pixels
const STRIP_WIDTH = 28; // pixels
const BESIDE_CELLS = 160; // pixels: names of lines, and the scale
const STRONG = 0.58; // how far on the scale texts on a colour are better read in that of the paper
const MOST_GROUPS_EXPLAINED = 12;

function heatmap(panel, frame) {
  const series = frame.order ? frame.order.map((index) => panel.series[index]) : panel.series;
  const columns = panel.series[0]?.x ?? [];
  const z = series.map((one) => one.y);
  const scale = heatScale(z, frame);
  const strips = (frame.strips ?? []).map((strip) => ({
    ...strip,
    values: frame.order ? frame.order.map((index) => strip.values[index]) : strip.values,
  }));
  const stripShare = STRIP_WIDTH / (frame.width - BESIDE_CELLS);
  const main = {
    type: "heatmap",
    z,
    ...scale,
    colorbar: { thickness: 10, outlinewidth: 0, len: 1, tickfont: { size: 11 }, xpad: 6 },
    xgap: columns.length <= 40 ? 1 : 0,
    ygap: series.length <= 60 ? 1 : 0,
    hoverinfo: "text",
    hovertext: series.map((one) =>
      one.y.map((value, column) =>
        hover(
          valued(panel.y_label, one.name),
          valued(panel.x_label, shownX(columns[column])),
          literal(short(value))
        )
      )
    ),
  };
  const layout = {
    xaxis: {
      ...namedAxis(columns, frame.width - BESIDE_CELLS),
      domain: [strips.length * stripShare, 1],
      range: [-0.5, columns.length - 0.5],
    },
    yaxis: lineAxis(series),
    legend: { itemclick: false, itemdoubleclick: false },
  };
  const beside = strips.flatMap((strip, number) => {
    layout[`xaxis${number + 2}`] = stripAxis(strip.name, number, stripShare);
    return stripTraces(strip, number, series, frame);
  });
  return { data: [main, ...cellTexts(z, columns.length, scale, frame), ...beside], layout };
}

function lineAxis(series) {
  const shown = series.length <= MOST_LINE_NAMES;
  return {
    type: "linear",
    range: [series.length - 0.5, -0.5],
    anchor: "free", // left of the strips
    position: 0,
    showgrid: false,
    zeroline: false,
    tickvals: shown ? series.map((_, line) => line) : [],
    ticktext: shown ? series.map((one) => label(one.name)) : [],
  };
}

// From the page's paper to a strong colour; values on both sides of zero have a colour each.
function heatScale(z, frame) {
  const [low, high] = extent(z.flat());
  if (low < 0 && high > 0) {
    const most = Math.max(-low, high);
    const colours = ["loss", "heat-none", "gain"].map((name) => frame.colour(name));
    return { zmin: -most, zmax: most, colorscale: colours.map((one, rank) => [rank / 2, one]) };
  }
  const colours = [1, 2, 3, 4].map((step) => frame.colour(`heat-${step}`));
  const floor = low >= 0 && high <= 1 ? 0 : low;
  return { zmin: floor, zmax: high, colorscale: colours.map((one, rank) => [rank / 3, one]) };
}

// Numbers in the cells, if there is room.
function cellTexts(z, columns, { zmin, zmax }, frame) {
  const roomy = (frame.width - BESIDE_CELLS) / columns >= NARROWEST_CELL_TEXT;
  if (!roomy || z.length * columns > MOST_CELL_TEXTS) return [];
  const cells = z.flatMap((line, y) => line.map((value, x) => ({ value, x, y })));
  const known = cells.filter(({ value }) => isNumber(value));
  const strength = (value) =>
    zmin < 0 && zmax > 0 ? Math.abs(value) / zmax : (value - zmin) / (zmax - zmin);
  const texts = {
    type: "scatter",
    mode: "text",
    x: known.map(({ x }) => x),
    y: known.map(({ y }) => y),
    text: known.map(({ value }) => cellText(value)),
    textfont: {
      size: 11,
      color: known.map(({ value }) => frame.colour(strength(value) > STRONG ? "paper" : "ink")),
    },
    hoverinfo: "skip",
    showlegend: false,
  };
  return [texts];
}

function cellText(value) {
  if (Math.abs(value) >= 10) return short(Number(value.toPrecision(3)));
  return Math.abs(value) < 0.005 ? "0" : inDigits(value, 2);
}

function stripAxis(name, number, share) {
  return {
    domain: [number * share, (number + 0.8) * share],
    range: [-0.5, 0.5],
    tickvals: [0],
    ticktext: [label(name)],
    tickangle: -45,
    showgrid: false,
    zeroline: false,
    fixedrange: true,
    automargin: true,
  };
}

function stripTraces(strip, number, series, frame) {
  const groups = [...new Set(strip.values.filter((value) => value !== null))].sort(naturally);
  const index = new Map(groups.map((group, rank) => [group, rank]));
  const colours = groups.map((group) => frame.look(group).colour);
  const column = {
    type: "heatmap",
    xaxis: `x${number + 2}`,
    x: [0],
    z: strip.values.map((value) => [index.get(value) ?? null]),
    zmin: -0.5,
    zmax: groups.length - 0.5,
    colorscale: steps(colours),
    showscale: false,
    ygap: series.length <= 60 ? 1 : 0,
    hoverinfo: "text",
    hovertext: strip.values.map((value, line) => [
      hover(literal(series[line].name), valued(strip.name, value ?? NOTHING)),
    ]),
  };
  if (groups.length > MOST_GROUPS_EXPLAINED) return [column];
  const explained = groups.map((group, rank) => ({
    type: "scatter",
    mode: "markers",
    xaxis: `x${number + 2}`,
    x: [null],
    y: [null],
    name: literal(group),
    legendgroup: String(number),
    legendgrouptitle: { text: literal(strip.name) },
    marker: { symbol: "square", size: 10, color: colours[rank] },
  }));
  return [column, ...explained];
}

function steps(colours) {
  return colours.flatMap((one, rank) => [
    [rank / colours.length, one],
    [(rank + 1) / colours.length, one],
  ]);
}
