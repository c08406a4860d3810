"use strict";

// A table that is sorted by a click on a column's name, and shown a page at a time.
// columns: [{ name, kind, value(row) to sort by, cell(row) to show }]; rows: anything.

const ROWS_PER_PAGE = 25;

class SortedTable {
  constructor({ caption = null, columns, rows, onOpen = null, sort = null }) {
    Object.assign(this, { columns, rows, onOpen, sort, page: 0 });
    this.head = element("tr");
    this.body = element("tbody");
    this.count = element("span", { className: "count", "aria-live": "polite" });
    const button = (name, by) =>
      element(
        "button",
        { type: "button", className: "small control", onclick: () => this.turn(by) },
        name
      );
    this.back = button("‹ Back", -1);
    this.next = button("Next ›", 1);
    this.pages = element("div", { className: "pages" }, this.count, this.back, this.next);
    const label = caption ?? "Table";
    const title = caption ? [element("caption", {}, caption)] : [];
    this.element = element("div", { className: "table" },
      element("div", { className: "table-box", tabIndex: 0, role: "region", "aria-label": label },
        element("table", {}, title, element("thead", {}, this.head), this.body)),
      this.pages);
    this.show();
  }

  // Other rows, or other columns: from the first page.
  update(changes) {
    Object.assign(this, changes, { page: 0 });
    this.show();
  }

  turn(by) {
    this.page += by;
    this.show();
  }

  sortBy(index) {
    const again = this.sort?.column === index;
    const upFirst = this.columns[index].kind === "text";
    this.update({ sort: { column: index, up: again ? !this.sort.up : upFirst } });
    this.head.children[index].firstChild.focus(); // it is a new one
  }

  show() {
    this.head.replaceChildren(...this.columns.map((column, index) => this.headOf(column, index)));
    const all = this.sorted();
    const begin = this.page * ROWS_PER_PAGE;
    const shown = all.slice(begin, begin + ROWS_PER_PAGE);
    this.body.replaceChildren(...shown.map((row) => this.lineOf(row)));
    this.pages.hidden = this.rows.length <= ROWS_PER_PAGE && this.rows.length > 0;
    const [first, last, total] = [begin + 1, begin + shown.length, all.length].map(inWhole);
    this.count.textContent = shown.length ? `${first}–${last} of ${total}` : "nothing found";
    this.back.disabled = this.page === 0;
    this.next.disabled = begin + ROWS_PER_PAGE >= all.length;
  }

  headOf(column, index) {
    const sorted = this.sort?.column === index ? (this.sort.up ? "ascending" : "descending") : null;
    const arrow = { ascending: " ↑", descending: " ↓" }[sorted] ?? "";
    const sort = () => this.sortBy(index);
    const button = element("button", { type: "button", onclick: sort }, column.name + arrow);
    return element("th", { scope: "col", className: column.kind, "aria-sort": sorted }, button);
  }

  lineOf(row) {
    const cells = this.columns.map((column) =>
      element("td", { className: column.kind }, column.cell(row))
    );
    if (!this.onOpen) return element("tr", {}, cells);
    return element("tr", { className: "opens", onclick: () => this.onOpen(row) }, cells);
  }

  // Rows without a value are last in both directions.
  sorted() {
    if (!this.sort) return this.rows;
    const { kind, value } = this.columns[this.sort.column];
    const sign = this.sort.up ? 1 : -1;
    const compare = kind === "number" ? (a, b) => a - b : naturally;
    const keyed = this.rows.map((row) => [value(row), row]);
    const isEmpty = ([key]) => !isKnown(key) || key === "";
    const known = keyed.filter((pair) => !isEmpty(pair));
    const unknown = keyed.filter(isEmpty);
    known.sort(([a], [b]) => sign * compare(a, b));
    return [...known, ...unknown].map(([, row]) => row);
  }
}

function textColumn(name, value) {
  return { name, kind: "text", value, cell: (row) => value(row) ?? NOTHING };
}

function numberColumn(name, value, show) {
  return { name, kind: "number", value, cell: (row) => show(value(row)) };
}

// A table of a section.
function tableOf({ title, columns, rows }) {
  const shown = columns.map((column, index) => {
    const best = bestOf(column, rows.map((row) => row[index]));
    return {
      name: column.name,
      kind: column.kind,
      value: (row) => row[index],
      cell: (row) => cellOf(column, row[index], best),
    };
  });
  return new SortedTable({ caption: title, columns: shown, rows }).element;
}

function bestOf(column, values) {
  if (!column.best) return null;
  const [low, high] = extent(values);
  return column.best === "highest" ? high : low;
}

function cellOf({ kind, digits }, value, best) {
  if (value === null) return NOTHING;
  if (kind === "text" || !isNumber(value)) return String(value);
  const text = digits === undefined ? short(value) : inDigits(value, digits);
  return value === best ? element("strong", { title: "the best" }, text) : text;
}
