"use strict";

// Curves of all runs: one picture for participants and one for newcomers, by what they are
// measured by. The runs' colours are those of the list above, which is the legend.

const COLOURS = 8;
const MOST_MARKED = 40; // rounds that are marked each
const DASHES = ["solid", "dash", "dot", "dashdot"];
const SCOPES = { participants: "Participants", newcomers: "Newcomers" };

function variableOf(index) {
  return `--series-${1 + (index % COLOURS)}`;
}

// As the page shows a variable's colour: it may depend on light and dark.
function colourOf(variable) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `var(${variable})`;
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

// Plotly reads tags and entities in what it is given; names are text.
function literal(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replace(/[\r\n\t]/g, " ");
}

function panelsOf(runs) {
  const panels = new Map();
  const isMarked = runs.every((run) => !run.curves || run.curves.rounds.length <= MOST_MARKED);
  runs.forEach((run, index) => {
    for (const [scope, title] of Object.entries(SCOPES)) {
      if (!run.curves || !run.curves[scope].some((value) => value !== null)) continue;
      const key = `${title}: ${run.curves.criterion}`;
      if (!panels.has(key)) panels.set(key, []);
      panels.get(key).push(traceOf(run, index, scope, isMarked));
    }
  });
  return panels;
}

function traceOf(run, index, scope, isMarked) {
  return {
    name: literal(run.title),
    x: run.curves.rounds,
    y: run.curves[scope],
    mode: isMarked ? "lines+markers" : "lines",
    line: { color: colourOf(variableOf(index)), width: 2, dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] },
    marker: { size: 5 },
    hovertemplate: "%{y:.4~g} in round %{x}",
  };
}

function layoutOf(lastRound) {
  const [ink, line] = ["--soft", "--line"].map(colourOf);
  const axis = { gridcolor: line, zeroline: false, linecolor: line, fixedrange: true, automargin: true };
  return {
    margin: { l: 36, r: 12, t: 8, b: 36 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { color: ink, size: 12 },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: { namelength: 40 },
    xaxis: { ...axis, title: { text: "round" }, range: [0, lastRound * 1.02 || 1] },
    yaxis: axis,
  };
}

// All places are made before anything is drawn: a chart is as wide as the others let it be.
function drawCharts(place, runs) {
  const panels = panelsOf(runs);
  const shown = new Map([...place.children].map((chart) => [chart.dataset.key, chart]));
  for (const [key, chart] of shown) {
    if (panels.has(key)) continue;
    Plotly.purge(chart.lastChild);
    chart.remove();
  }
  for (const key of panels.keys()) {
    if (!shown.has(key)) shown.set(key, newChart(place, key));
  }
  const lastRound = Math.max(...runs.map((run) => Math.max(run.rounds || 0, run.round)), 0);
  for (const [key, traces] of panels) {
    const plot = shown.get(key).lastChild;
    Plotly.react(plot, traces, layoutOf(lastRound), { displayModeBar: false, responsive: true });
    Plotly.Plots.resize(plot);
  }
}

function newChart(place, key) {
  const chart = document.createElement("div");
  const title = document.createElement("h2");
  const plot = document.createElement("div");
  title.textContent = key;
  chart.className = "chart";
  plot.className = "plot";
  chart.dataset.key = key;
  chart.append(title, plot);
  place.append(chart);
  return chart;
}
