// Elements, made and changed without markup: whatever a server says becomes text.

/** An element with attributes and children; `text` is its text, `on…` a listener. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") made.textContent = value;
    else if (key === "dataset") Object.assign(made.dataset, value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Sets a text only if it is another one: what did not change is not laid out or read out again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function setData(element, name, value) {
  if (element.dataset[name] !== String(value)) element.dataset[name] = value;
}

export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** For those who listen: only screen readers have it. */
export const spoken = (text) => el("span", { class: "sr", text });

/** Children by key: those that stay are kept as they are (focus, animations), others are made or removed. */
export class Keyed {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.kept = new Map();
  }

  /** `change(element, item)` is called for each item, in their order. */
  update(items, keyOf, change) {
    const before = this.kept;
    this.kept = new Map();
    let place = this.parent.firstChild;
    for (const item of items) {
      const key = keyOf(item);
      const element = before.get(key) ?? this.make(item);
      before.delete(key);
      this.kept.set(key, element);
      change?.(element, item);
      if (element === place) place = place.nextSibling;
      else this.parent.insertBefore(element, place);
    }
    for (const element of before.values()) element.remove();
  }

  get(key) {
    return this.kept.get(key);
  }
}

export const reducedMotion = window.matchMedia("(prefers-reduced-motion: reduce)");
