// Draws each element with data-plot: axes, a line per case, its rounds as thin lines, and a legend with the values
// at the pointer.
"use strict";

const HEIGHT = 240;
// A line with fewer points shows them.
const FEW = 12;
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

// Returns the place of a value on the axis, the range of the axis, its ticks unless uPlot chooses them, and their texts.
function horizontal({ percentile: nines }) {
  if (nines) {
    const at = (percent) => (percent < 100 ? Math.min(-Math.log10(1 - percent / 100), nines) : nines + 0.5);
    const text = (place) => (place > nines ? "max" : `${+(100 - 10 ** (2 - place)).toFixed(nines)}`);
    return { at, range: [0, nines + 0.5], ticks: [0, at(50), ...Array.from({ length: nines }, (_, n) => n + 1), nines + 0.5], text };
  }
  return { at: (value) => value, range: (_, __, high) => [0, high], text: (value) => number.format(value) };
}

function logarithmic(_, __, low, high) {
  const factors = high / low > 1000 ? [1] : [1, 2, 5];
  const powers = Array.from({ length: Math.log10(high / low) + 2 }, (_, n) => 10 ** (Math.floor(Math.log10(low)) + n));
  return powers.flatMap((power) => factors.map((factor) => factor * power)).filter((tick) => tick >= low && tick <= high);
}

// The samples in the tables have each style: the style sheet defines its colour and dash.
function pen(style, name) {
  const sample = document.querySelector(`svg.swatch.style${style}`);
  const of = getComputedStyle(sample);
  const dash = of.getPropertyValue("--d").split(" ").map(Number).filter(Number.isFinite);
  const label = document.createElement("span");
  label.append(sample.cloneNode(true), name);
  return { stroke: of.getPropertyValue("--c"), dash, label, width: 2, value: (_, value) => (value == null ? "" : number.format(value)) };
}

// The rounds and the median have points at different places: each line shows its nearest value.
function nearest(plot, series, index) {
  const values = plot.data[series];
  for (let far = 0; far < values.length; far++) {
    if (values[index - far] != null) return index - far;
    if (values[index + far] != null) return index + far;
  }
  return index;
}

function draw(box) {
  const { x, y, lines } = JSON.parse(box.dataset.plot);
  const across = horizontal(x.scale);
  const of = getComputedStyle(box);
  const grid = { stroke: of.getPropertyValue("--line"), width: 1 };
  const axis = { stroke: of.getPropertyValue("--muted"), grid, ticks: grid, font: "11px system-ui", labelFont: "600 11px system-ui", labelSize: 20 };
  const columns = [];
  const series = [];
  for (const { name, style, points, rounds } of lines) {
    const line = pen(style, name);
    for (const run of [...rounds, points]) {
      columns.push([run.map((point) => across.at(point[0])), run.map((point) => point[1])]);
      const marks = { show: points.length < FEW, fill: line.stroke };
      series.push(run === points ? { ...line, points: marks } : { ...line, dash: [], width: 1, alpha: 0.35, points: { show: false }, class: "round" });
    }
  }
  box.drawn?.destroy();
  box.drawn = new uPlot({
    width: box.clientWidth,
    height: HEIGHT,
    cursor: { y: false, drag: { x: false }, dataIdx: nearest },
    scales: {
      x: { time: false, range: across.range },
      y: y.scale === "log" ? { distr: 3 } : { range: (_, __, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    axes: [
      { ...axis, size: 28, label: x.label, splits: across.ticks, values: (_, ticks) => ticks.map(across.text) },
      { ...axis, label: y.label, splits: y.scale === "log" ? logarithmic : undefined, size: (_, texts) => 20 + 6.5 * Math.max(...(texts ?? [""]).map((text) => text?.length ?? 0)), values: (_, ticks) => ticks.map((tick) => tick && number.format(tick)) },
    ],
    legend: { markers: { show: false } },
    series: [{ label: x.label, value: (_, place) => (place == null ? "" : across.text(place)) }, ...series],
  }, uPlot.join(columns), box);
}

addEventListener("DOMContentLoaded", () => {
  const boxes = document.querySelectorAll("[data-plot]");
  // Draws a plot as soon as it has a width.
  const sizes = new ResizeObserver((changes) => requestAnimationFrame(() => {
    for (const { target: box } of changes) {
      const width = box.clientWidth;
      if (width > 0 && !box.drawn) draw(box);
      else if (width > 0 && box.drawn.width !== width) box.drawn.setSize({ width, height: HEIGHT });
    }
  }));
  for (const box of boxes) sizes.observe(box);
  for (const colours of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(colours).addEventListener("change", () => boxes.forEach((box) => box.drawn && draw(box)));
  }
});
