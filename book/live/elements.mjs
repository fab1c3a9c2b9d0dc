// The few DOM calls the parts share.

let made = 0;

export function uniqueId() {
  return `kv-part-${++made}`;
}

/** An element with properties set and children appended. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function label(id, text) {
  return make("label", { htmlFor: id }, text);
}

export function button(text, pressed) {
  const element = make("button", { type: "button", className: "kv-button" }, text);
  element.addEventListener("click", pressed);
  return element;
}
