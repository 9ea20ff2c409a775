"use strict";
// The data, and small helpers. Text from the data only ever becomes text nodes.
const report = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function number(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const places = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(places, 6) });
}

function time(us) {
  if (us >= 1e6) return `${number(us / 1e6)} s`;
  if (us >= 1e3) return `${number(us / 1e3)} ms`;
  if (us >= 1 || us === 0) return `${number(us)} µs`;
  return us >= 1e-3 ? `${number(1e3 * us)} ns` : "< 1 ns";
}

function percent(part) {
  return part > 0 && part < 1e-4 ? "< 0.01 %" : `${number(100 * part)} %`;
}

function rate(gbps) {
  if (gbps >= 1e3) return `${number(gbps / 1e3)} TB/s`;
  return gbps >= 1 || gbps === 0 ? `${number(gbps)} GB/s` : `${number(1e3 * gbps)} MB/s`;
}

function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 1000 && at < units.length - 1; at++) bytes /= 1000;
  return `${number(bytes)} ${units[at]}`;
}

$("source").textContent = report.source;
$("model").textContent = report.model;
$("machine").textContent = report.machine;
$("layers").textContent = report.layers === 1 ? "one layer" : `${report.layers} layers`;
for (const [name, value] of report.facts) {
  $("facts").append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
}
for (const note of report.notes) $("note-list").append(make("li", {}, note));
