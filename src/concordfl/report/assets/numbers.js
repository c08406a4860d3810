"use strict";

const MINUS = "\u2212";
const NOTHING = "\u2013"; // shown where there is no value

const naturally = new Intl.Collator("en", { numeric: true }).compare; // "client 9", "client 10"
const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 20 });
const FIXED = new Map();

function isNumber(value) {
  return typeof value === "number";
}

function inDigits(value, digits) {
  if (!isNumber(value)) return NOTHING;
  if (!FIXED.has(digits)) {
    const range = { minimumFractionDigits: digits, maximumFractionDigits: digits };
    FIXED.set(digits, new Intl.NumberFormat("en", range));
  }
  return FIXED.get(digits).format(value).replace("-", MINUS);
}

function inWhole(count) {
  return inDigits(count, 0);
}

// As many digits as tell something: for hovering, where the kind of number is not known.
function short(value) {
  if (!isNumber(value)) return NOTHING;
  const size = Math.abs(value);
  const isExtreme = size !== 0 && (size < 1e-4 || size >= 1e9);
  if (isExtreme) return value.toExponential(2).replaceAll("-", MINUS);
  return GROUPED.format(Number(value.toPrecision(size >= 1e4 ? 6 : 4))).replace("-", MINUS);
}

function percent(share, digits = 0) {
  return isNumber(share) ? `${inDigits(100 * share, digits)}%` : NOTHING;
}

function mean(values) {
  const known = values.filter(isNumber);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!isNumber(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}
