"use strict";

// Elements are made of text nodes only: whatever a name contains, it is shown as it is.
// `properties` are the element's own (className, onclick), or attributes (aria-label, data-…).
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (!isKnown(value)) continue;
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter(isKnown));
  return made;
}

function isKnown(value) {
  return value !== null && value !== undefined;
}

function choice(label, names, chosen, onChoose) {
  const options = names.map((name, index) =>
    element("option", { value: String(index), selected: index === chosen }, name)
  );
  const select = element("select", { onchange: () => onChoose(Number(select.value)) }, options);
  return element("label", { className: "choice control" }, element("span", {}, label), select);
}

// Lone halves of a character cannot be written into a file or an address.
function wellFormed(text) {
  return text.replace(/[\uD800-\uDBFF][\uDC00-\uDFFF]|[\uD800-\uDFFF]/g, (found) =>
    found.length === 2 ? found : "\uFFFD"
  );
}

function download(name, kind, text) {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
