"use strict";

// All colours are variables of page.css. They depend on the scheme, "light" or "dark", and are
// asked for by name, because a page is printed in light colours whatever is on the screen.
const SERIES_COLOURS = 8;

function currentScheme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function colourOf(variable, scheme) {
  const probe = element("span");
  probe.style.colorScheme = scheme;
  probe.style.color = `var(--${variable})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

const KNOWN_COLOURS = new Map();

function colour(variable, scheme) {
  const key = `${scheme} ${variable}`;
  if (!KNOWN_COLOURS.has(key)) KNOWN_COLOURS.set(key, colourOf(variable, scheme));
  return KNOWN_COLOURS.get(key);
}

function transparent(rgb, opacity) {
  return rgb.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
}

// The same name has the same colour in all charts of the page, and names of one chart differ: a
// name takes the first number that is free in the chart where it first appears. `methods` come
// first, each with its own.
class Names {
  constructor(methods) {
    this.numbers = new Map(methods.map((name, number) => [name, number]));
  }

  within(names) {
    const taken = new Set();
    const own = new Map();
    for (const name of new Set(names)) {
      const known = this.numbers.get(name);
      if (known === undefined || taken.has(known)) continue;
      own.set(name, known);
      taken.add(known);
    }
    for (const name of new Set(names)) {
      if (own.has(name)) continue;
      let number = 0;
      while (taken.has(number)) number += 1;
      own.set(name, number);
      taken.add(number);
      if (!this.numbers.has(name)) this.numbers.set(name, number);
    }
    return own;
  }
}

// Beyond the last colour they begin again, with other dashes, markers and hatches.
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const MARKERS = ["circle", "diamond", "square", "triangle-up", "cross", "x", "star"];
const HATCHES = ["", "/", ".", "x", "-", "+"];

function look(number, scheme) {
  const again = Math.floor(number / SERIES_COLOURS);
  return {
    colour: colour(`series-${(number % SERIES_COLOURS) + 1}`, scheme),
    dash: DASHES[again % DASHES.length],
    marker: MARKERS[again % MARKERS.length],
    hatch: HATCHES[again % HATCHES.length],
  };
}
