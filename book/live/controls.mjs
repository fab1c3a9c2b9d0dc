// One labelled form element for each kind of control; each reports the index of the value chosen.
import { label, make, uniqueId } from "./elements.mjs";

function slider(control, moved) {
  const id = uniqueId();
  const shown = make("output", { htmlFor: id });
  const input = make("input", { id, type: "range", min: 0, max: control.values.length - 1 });
  input.value = control.values.indexOf(control.value);
  const show = () => {
    shown.textContent = control.texts[input.value];
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => {
    show();
    moved(Number(input.value));
  });
  show();
  return make("div", { className: "kv-control" }, label(id, control.label), input, shown);
}

function choice(control, moved) {
  const id = uniqueId();
  const options = control.texts.map((text, index) => make("option", { value: index }, text));
  const select = make("select", { id }, ...options);
  select.value = control.values.indexOf(control.value);
  select.addEventListener("change", () => moved(Number(select.value)));
  return make("div", { className: "kv-control" }, label(id, control.label), select);
}

function toggle(control, moved) {
  const name = uniqueId();
  const options = control.texts.map((text, index) => {
    const radio = make("input", { type: "radio", name, id: uniqueId(), value: index });
    radio.checked = control.values[index] === control.value;
    radio.addEventListener("change", () => moved(index));
    return make("span", { className: "kv-option" }, radio, label(radio.id, text));
  });
  return make("fieldset", { className: "kv-control" }, make("legend", {}, control.label), ...options);
}

const KINDS = { slider, choice, toggle };

/** A group of the controls a drawing describes; `moved(key, index)` hears of every change. */
export function makeControls(controls, name, moved) {
  const made = Object.entries(controls).map(([key, control]) =>
    KINDS[control.kind](control, (index) => moved(key, index)),
  );
  const group = make("div", { className: "kv-controls", role: "group" }, ...made);
  group.setAttribute("aria-label", name);
  return group;
}
