"use strict";

// The table of all clients, and the card that opens from it or from the address #client=ID.

const LEAST_SHARE_FOUND = 0.05; // a label is searched for among clients with so much of it

class ClientsSection {
  constructor(clients, figures, names) {
    Object.assign(this, { clients, figures, names });
    this.scores = new Scores(clients);
    this.everybody = clients.id.map((_, client) => client);
    this.run = clients.runs[this.bestRun()];
    this.dialog = document.getElementById("card");
    this.dialog.addEventListener("close", () => this.closed());
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // beside the card
    });
    addEventListener("hashchange", () => this.openFromAddress());
    this.table = new SortedTable({
      columns: this.columns(),
      rows: this.everybody,
      onOpen: (client) => this.open(client),
    });
    this.element = this.build();
  }

  // The one to begin with: the best of those that find groups, or of all.
  bestRun() {
    const { runs, higher_is_better: higher } = this.clients;
    const telling = runs.filter((run) => run.found.some(isKnown));
    const score = (run) => (higher ? 1 : -1) * (mean(run.scores) ?? NaN); // NaN stays where it is
    const best = (telling.length ? telling : runs).toSorted((a, b) => score(b) - score(a))[0];
    return runs.indexOf(best);
  }

  build() {
    const { runs } = this.clients;
    this.search = element("input", {
      type: "search",
      placeholder: "Search by id, group or label",
      "aria-label": "Search clients by id, group or label",
      title: `A label finds the clients of whom at least ${percent(LEAST_SHARE_FOUND)} is of it`,
      oninput: () => this.filter(),
    });
    const chosen = runs.length > 1
      ? choice("Run", runs.map(runName), runs.indexOf(this.run), (index) => this.choose(index))
      : null;
    return element("section", { id: "clients" },
      element("h2", {}, "Clients"),
      element("p", { className: "lead" }, this.lead()),
      element("div", { className: "tools control" }, this.search, chosen),
      this.table.element);
  }

  lead() {
    const outside = this.clients.held_out.filter(Boolean).length;
    const held = outside ? ` ${inWhole(outside)} of them were held out of training.` : "";
    const all = `All ${inWhole(this.everybody.length)} clients.${held}`;
    return `${all} Choose one to see its data, its group and its score under every method.`;
  }

  columns() {
    const { clients, run, scores } = this;
    const id = (client) => clients.id[client];
    const gain = (row) =>
      numberColumn(
        `against ${row}`,
        (client) => scores.gainOfRun(run, row, client),
        (one) => scores.gainText(one)
      );
    const columns = [
      { name: "client", kind: "text", value: id, cell: (client) => this.linkOf(client) },
      numberColumn("examples", (client) => sizeOf(clients, client), inWhole),
      ...Object.entries(clients.true_groups).map(([kind, groups]) =>
        textColumn(`true ${kind}`, (client) => groups[client])
      ),
    ];
    if (!run) return columns;
    if (run.found.some(isKnown)) {
      columns.push(
        textColumn("group found", (client) => run.found[client]),
        numberColumn("how sure", (client) => run.sure[client], (sure) => percent(sure))
      );
    }
    const scored = (client) => run.scores[client];
    const rows = [clients.alone, clients.averaged].filter(isKnown);
    const others = rows.filter((row) => row !== run.row);
    const score = numberColumn(scores.name, scored, (one) => scores.text(one));
    return [...columns, score, ...others.map(gain)];
  }

  linkOf(client) {
    const id = this.clients.id[client];
    const link = element("a", { href: addressOf(id) }, id);
    return this.clients.held_out[client] ? [link, " ", heldOutMark()] : link;
  }

  choose(index) {
    this.run = this.clients.runs[index];
    this.haystacks = null;
    this.table.update({ columns: this.columns(), sort: null });
    this.filter();
  }

  // What a client is found by, in small letters; made when somebody searches.
  textOf(client) {
    const { clients, run } = this;
    const shares = clients.label_shares[client] ?? [];
    const labels = clients.classes.filter((_, label) => shares[label] >= LEAST_SHARE_FOUND);
    const groups = Object.values(clients.true_groups).map((ofAll) => ofAll[client]);
    const held = clients.held_out[client] ? "held out" : null;
    return [clients.id[client], ...groups, run?.found[client], held, ...labels]
      .filter(isKnown)
      .join("\n")
      .toLowerCase();
  }

  filter() {
    this.haystacks ??= this.everybody.map((client) => this.textOf(client));
    const wanted = this.search.value.trim().toLowerCase();
    const rows = this.everybody.filter((client) => this.haystacks[client].includes(wanted));
    this.table.update({ rows });
  }

  open(client) {
    const address = addressOf(this.clients.id[client]);
    if (location.hash === address) this.show(client);
    else location.hash = address;
  }

  openFromAddress() {
    const wanted = /^#client=(.*)$/s.exec(location.hash)?.[1];
    if (wanted === undefined) {
      this.dialog.close(); // the reader went back
      return;
    }
    const client = this.clients.id.findIndex((id) => addressOf(id) === `#client=${wanted}`);
    const byName = client >= 0 ? client : this.clients.id.indexOf(decoded(wanted));
    if (byName >= 0) this.show(byName);
  }

  show(client) {
    this.figures.remove(this.dialog);
    const close = () => this.dialog.close();
    const content = cardOf(this.clients, this.scores, client, this.figures, this.names, close);
    this.dialog.replaceChildren(...content.filter((part) => part !== null));
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
  }

  closed() {
    this.figures.remove(this.dialog);
    this.dialog.replaceChildren();
    history.replaceState(null, "", location.pathname + location.search);
  }
}

function addressOf(id) {
  return `#client=${encodeURIComponent(wellFormed(id))}`;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
