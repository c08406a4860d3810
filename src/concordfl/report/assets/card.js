"use strict";

// All that is known of one client.

// Who is compared with whom, of `clients` (a Clients of the document).
class Scores {
  constructor(clients) {
    this.clients = clients;
    this.rows = [...new Set(clients.runs.map((run) => run.row))];
    this.unit = clients.is_share ? 100 : 1;
    this.digits = clients.is_share ? 1 : 3;
    this.runsOf = new Map(
      this.rows.map((row) => [row, clients.runs.filter((run) => run.row === row)])
    );
  }

  text(score) {
    return isNumber(score) ? inDigits(this.unit * score, this.digits) : NOTHING;
  }

  get name() {
    return this.clients.criterion + (this.clients.is_share ? ", %" : "");
  }

  meanOf(row, client) {
    return mean((this.runsOf.get(row) ?? []).map((run) => run.scores[client]));
  }

  // Against the other row's run with the same seed, or its mean if there is none.
  gainOfRun(run, row, client) {
    const same = (this.runsOf.get(row) ?? []).find((other) => other.seed === run.seed);
    return this.gain(run.scores[client], same ? same.scores[client] : this.meanOf(row, client));
  }

  // Above zero is better, whichever way the criterion goes.
  gain(score, other) {
    if (!isNumber(score) || !isNumber(other)) return null;
    return this.clients.higher_is_better ? score - other : other - score;
  }

  gainText(gain) {
    if (!isNumber(gain)) return NOTHING;
    const text = inDigits(Math.abs(this.unit * gain), this.digits);
    const none = Number(text) === 0;
    const sign = none ? "" : gain > 0 ? "+" : MINUS;
    return element("span", { className: none ? "" : gain > 0 ? "gain" : "loss" }, sign + text);
  }
}

function sizeOf(clients, client) {
  return clients.train[client] + clients.validation[client] + clients.test[client];
}

// How often each label occurs among the examples that were trained with.
function federationShares(clients) {
  const everybody = clients.id.map((_, client) => client);
  const members = everybody.filter((client) => !clients.held_out[client]);
  const total = members.reduce((sum, client) => sum + clients.train[client], 0);
  const ofLabel = (client, label) => clients.train[client] * clients.label_shares[client][label];
  return clients.classes.map(
    (_, label) => members.reduce((sum, client) => sum + ofLabel(client, label), 0) / total
  );
}

function cardOf(clients, scores, client, figures, names, close) {
  const part = (title, ...content) => element("section", {}, element("h3", {}, title), ...content);
  const sentence = (className, text) => (text ? element("p", { className }, text) : null);
  const unit = clients.is_share ? ", in percent" : "";
  return [
    element("div", { className: "card-head" },
      element("h2", { id: "card-title" }, clients.id[client]),
      clients.held_out[client] ? heldOutMark() : null,
      element(
        "button",
        { type: "button", className: "close", "aria-label": "Close", onclick: close },
        "×"
      )),
    sentence("lead", clients.apart[client]),
    sentence("verdict", clients.verdict[client]),
    sentence("diagnosed", clients.diagnosed[client]),
    part("Its data", sizesOf(clients, client), labelsOf(clients, client, figures)),
    part(`Its ${clients.criterion} under each method${unit}`, scoresTable(scores, client)),
    groupsOf(clients, client, names, part),
  ];
}

function heldOutMark() {
  return element("span", { className: "mark", title: "was not in training" }, "held out");
}

function sizesOf(clients, client) {
  const groups = Object.entries(clients.true_groups);
  return factList([
    ["training examples", inWhole(clients.train[client])],
    ["validation", inWhole(clients.validation[client])],
    ["test", inWhole(clients.test[client])],
    ...groups.map(([kind, ofAll]) => [`true ${kind}`, ofAll[client] ?? NOTHING]),
  ]);
}

function factList(facts) {
  const pair = ([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value));
  return element("dl", { className: "facts" }, facts.map(pair));
}

function labelsOf(clients, client, figures) {
  if (!clients.classes.length) return null;
  const inPercent = (shares) => shares.map((share) => 100 * share);
  const series = [
    { name: "this client", x: clients.classes, y: inPercent(clients.label_shares[client]) },
    { name: "federation", x: clients.classes, y: inPercent(federationShares(clients)) },
  ];
  const [title, x_label, y_label] = ["Its labels", "", "% of examples"];
  const panel = { kind: "bars", title, x_label, y_label, series };
  const caption = "How often each label occurs, beside the whole federation.";
  return figures.add({ id: "labels-of-client", caption, panel, isLow: true });
}

function scoresTable(scores, client) {
  const { clients } = scores;
  const seeds = [...new Set(clients.runs.map((run) => run.seed))].sort((a, b) => a - b);
  const ofSeed = (row, seed) => scores.runsOf.get(row).find((run) => run.seed === seed);
  const meanOf = (row) => scores.meanOf(row, client);
  const score = (name, value) => numberColumn(name, value, (one) => scores.text(one));
  const gain = (other) =>
    numberColumn(
      `against ${other}`,
      (row) => (row === other ? null : scores.gain(meanOf(row), meanOf(other))),
      (one) => scores.gainText(one)
    );
  const columns = [
    textColumn("method", (row) => row),
    ...seeds.map((seed) => score(`seed ${seed}`, (row) => ofSeed(row, seed)?.scores[client])),
    score("mean", meanOf),
    ...[clients.alone, clients.averaged].filter(isKnown).map(gain),
  ];
  return new SortedTable({ columns, rows: scores.rows }).element;
}

function groupsOf(clients, client, colours, part) {
  const telling = clients.runs.filter((run) =>
    [run.found[client], run.weights?.values[client], run.novelty[client]].some(isKnown)
  );
  if (!telling.length) return null;
  const row = (run) => element("tr", {},
    element("th", { scope: "row" }, runName(run)),
    element("td", {}, run.found[client] ?? NOTHING),
    element("td", { className: "number" }, percent(run.sure[client])),
    element("td", { className: "mixture" }, mixtureOf(run, client, colours)),
    element("td", { className: "number" }, inDigits(run.novelty[client], 2)));
  const kinds = {
    run: "text",
    "group found": "text",
    "how sure": "number",
    "its mixture of models": "text",
    "log-likelihood": "number",
  };
  const head = Object.entries(kinds).map(([name, className]) =>
    element("th", { scope: "col", className }, name)
  );
  return part("Its group and mixture",
    element("div", { className: "table-box" },
      element("table", {},
        element("thead", {}, element("tr", {}, head)),
        element("tbody", {}, telling.map(row)))));
}

function runName(run) {
  return `${run.row} · seed ${run.seed}`;
}

const LEAST_WEIGHT_TOLD = 0.005;

function mixtureOf(run, client, colours) {
  const weights = run.weights?.values[client];
  if (!isKnown(weights)) return NOTHING;
  const numbers = colours.within(run.weights.models);
  const parts = run.weights.models
    .map((model, index) => ({ model, weight: weights[index] }))
    .filter(({ weight }) => weight >= LEAST_WEIGHT_TOLD);
  const pieces = parts.map(({ model, weight }) => {
    const piece = element("span", { title: `${model}: ${percent(weight)}` });
    piece.style.flexGrow = weight;
    piece.style.background = look(numbers.get(model), currentScheme()).colour;
    return piece;
  });
  const bar = element("div", { className: "bar", "aria-hidden": "true" }, pieces);
  const heaviest = parts.toSorted((a, b) => b.weight - a.weight);
  const words = heaviest.map(({ model, weight }) => `${model} ${percent(weight)}`).join(", ");
  return [bar, element("small", {}, words)];
}
