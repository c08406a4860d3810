"use strict";

// Asks the watcher how the runs are getting on, and shows it. All text is set as text.

const SECONDS_BETWEEN_LOOKS = 1;
const SECONDS_TO_WAIT = 10;
const byId = (id) => document.getElementById(id);
let drawn = ""; // the curves that are shown, as they were sent
const sent = new WeakMap(); // what was sent of a run, by its card

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function runCard(run, index, isOnly) {
  const card = element("article", `run ${run.state.replace(" ", "-")}`);
  const left = element("div");
  const name = element("div", "name");
  const swatch = element("span", "swatch");
  swatch.style.background = `var(${variableOf(index)})`;
  name.append(swatch, element("b", "", run.title), element("span", "state", run.state));
  left.append(name, progressBar(run), element("div", "words", run.progress.join(" · ")));
  if (isOnly && run.facts.length) left.append(element("div", "facts", run.facts.join(" · ")));
  if (run.way_on) left.append(wayOn(run));
  card.append(left, figures(run));
  return card;
}

function progressBar(run) {
  const bar = element("progress");
  bar.setAttribute("aria-label", `Rounds of ${run.title}`);
  bar.max = run.rounds || 1;
  bar.value = run.rounds ? run.round : 0; // where nobody knows how many there will be, it stays empty
  return bar;
}

function wayOn(run) {
  const line = element("div", "way-on");
  line.append(element("code", "", run.way_on), ` ${run.state === "stopped" ? "goes on with it" : "begins it"}`);
  return line;
}

function figures(run) {
  const list = element("dl");
  for (const [name, text] of run.figures) {
    const pair = element("div");
    pair.append(element("dt", "", name), element("dd", "", text));
    list.append(pair);
  }
  return list;
}

// What has not changed stays as it is, so that a reader can select and copy it.
function showCards(place, runs) {
  runs.forEach((run, index) => {
    const version = JSON.stringify([run, runs.length]);
    const old = place.children[index];
    if (old && sent.get(old) === version) return;
    const card = runCard(run, index, runs.length === 1);
    sent.set(card, version);
    if (old) old.replaceWith(card);
    else place.append(card);
  });
  while (place.children.length > runs.length) place.lastChild.remove();
}

function messages(runs) {
  const withTitle = (run, text) => (runs.length > 1 ? `${run.title}: ${text}` : text);
  return runs.flatMap((run) => run.messages.map((text) => withTitle(run, text)));
}

function showMessages(place, lines) {
  const list = place.querySelector("ul");
  place.hidden = lines.length === 0;
  if (lines.join("\n") === [...list.children].map((item) => item.textContent).join("\n")) return;
  list.replaceChildren(...lines.map((text) => element("li", "", text)));
}

function show(status) {
  byId("headline").textContent = status.headline;
  byId("folder").textContent = status.folder;
  document.title = `${status.headline} – concordfl watch`;
  showCards(byId("runs"), status.runs);
  showMessages(byId("messages"), messages(status.runs));
  const curves = JSON.stringify(status.runs.map((run) => [run.title, run.curves, run.rounds]));
  if (curves !== drawn) drawCharts(byId("charts"), status.runs);
  drawn = curves;
}

async function ask() {
  try {
    const answer = await fetch("status.json", { signal: AbortSignal.timeout(1000 * SECONDS_TO_WAIT) });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

async function look() {
  const status = await ask();
  setTimeout(look, 1000 * SECONDS_BETWEEN_LOOKS);
  setConnection(status ? "" : `The watcher has ended; this is what it saw last. The page goes on when it is back: concordfl watch DIR --port ${location.port}`);
  if (status) show(status);
}

function setConnection(text) {
  if (byId("connection").textContent !== text) byId("connection").textContent = text;
  document.body.classList.toggle("gone", text !== "");
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawn = ""; });
look();
