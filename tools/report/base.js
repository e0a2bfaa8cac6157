"use strict";
// What the charts share: numbers as people read them, SVG, axes, and the box that tells values.

const data = JSON.parse(document.getElementById("data").textContent);
const step = data.step;

function bytes_text(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) n /= 1024, ++i;
  return (n === Math.floor(n) ? n : n < 10 ? n.toFixed(2) : n.toFixed(1)) + " " + units[i];
}
function seconds_text(s) {
  if (s === 0) return "0 s";
  if (Math.abs(s) < 1e-3) return (s * 1e6).toFixed(1) + " us";
  if (Math.abs(s) < 1) return (s * 1e3).toFixed(2) + " ms";
  if (Math.abs(s) < 600) return s.toFixed(2) + " s";
  return (s / 60).toFixed(1) + " min";
}
function count_text(n) {
  const units = ["", " k", " M", " G", " T"];
  let i = 0;
  while (Math.abs(n) >= 1000 && i < units.length - 1) n /= 1000, ++i;
  return +n.toPrecision(4) + units[i];
}

const svg_names = "http://www.w3.org/2000/svg";
function svg_node(parent, name, attributes, text) {
  const node = document.createElementNS(svg_names, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}
function html_node(parent, name, attributes, text) {
  const node = document.createElement(name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  parent.appendChild(node);
  return node;
}

/// Round values from `low` to `high`, about `count` of them; of bytes in powers of two.
function ticks(low, high, count, binary) {
  const span = high - low;
  if (!(span > 0)) return [low];
  let unit = span / count;
  if (binary) {
    unit = Math.pow(2, Math.ceil(Math.log2(unit)));
  } else {
    const power = Math.pow(10, Math.floor(Math.log10(unit)));
    unit = power * [1, 2, 5, 10].find((m) => m * power >= unit);
  }
  const all = [];
  for (let i = Math.ceil(low / unit - 1e-9); i * unit <= high + unit * 1e-9; ++i) all.push(i * unit);
  return all;
}
/// A time axis has one unit.
function time_labels(values, high) {
  const [scale, unit] = high < 1e-3 ? [1e6, "us"] : high < 1 ? [1e3, "ms"] : [1, "s"];
  return values.map((v) => +(v * scale).toPrecision(6) + " " + unit);
}

/// First index whose key is above x.
function upper_bound(list, x, key) {
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) > x) high = middle; else low = middle + 1;
  }
  return low;
}

const tip = html_node(document.body, "div", { id: "tip", role: "status" });
function show_tip(event, text) {
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12
                                                                  : event.clientY + 18) + "px";
}
function hide_tip() { tip.style.display = "none"; }

function legend(parent, entries) {
  const box = html_node(parent, "div", { class: "legend" });
  for (const [name, colour] of entries) {
    const entry = html_node(box, "span", {});
    html_node(entry, "i", { style: "background:" + colour });
    entry.appendChild(document.createTextNode(name));
  }
}

/// An empty plot with axes. frame.x and frame.y map values to places.
function plot(parent, options) {
  const width = Math.max(320, parent.clientWidth), height = options.height || 220;
  const left = 78, right = 14, top = 12, bottom = 30;
  const svg = svg_node(parent, "svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
                                        "aria-label": options.label });
  const [x0, x1] = options.x, [y0, y1] = options.y;
  const frame = {
    svg, left, top, right: width - right, bottom: height - bottom,
    x: (v) => left + (x1 > x0 ? (v - x0) / (x1 - x0) : 0.5) * (width - left - right),
    y: (v) => height - bottom - (y1 > y0 ? (v - y0) / (y1 - y0) : 0.5) * (height - top - bottom),
    value_at: (event) => {
      const box = svg.getBoundingClientRect();
      const at = (event.clientX - box.left) / box.width * width;
      return x0 + (at - left) / (width - left - right) * (x1 - x0);
    },
  };
  const across = ticks(x0, x1, Math.max(3, Math.floor(width / 130)));
  const labels = options.x_labels(across);
  across.forEach((v, i) => {
    svg_node(svg, "line", { x1: frame.x(v), x2: frame.x(v), y1: top, y2: frame.bottom, stroke: "var(--grid)" });
    svg_node(svg, "text", { x: Math.min(frame.x(v), width - 24), y: height - 10, "text-anchor": "middle" }, labels[i]);
  });
  const up = ticks(y0, y1, Math.max(2, Math.floor(height / 50)), options.binary);
  for (const v of up) {
    svg_node(svg, "line", { x1: left, x2: frame.right, y1: frame.y(v), y2: frame.y(v), stroke: "var(--grid)" });
    svg_node(svg, "text", { x: left - 8, y: frame.y(v) + 4, "text-anchor": "end" }, options.y_label(v));
  }
  return frame;
}

const drawings = [];
/// Draw now, and again when the window has another width, or other colours. paint(place, again)
function draw(id, paint) {
  const place = document.getElementById(id);
  if (!place) return;
  const again = () => { place.textContent = ""; paint(place, again); };
  drawings.push(again);
  again();
}
let drawn_width = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth === drawn_width) return;
  drawn_width = document.body.clientWidth;
  drawings.forEach((again) => again());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawings.forEach((again) => again()));
