// Draws graphs as SVG: nodes and edges come from the API, dagre computes the layout. The tables below the
// graphs have the same data.
"use strict";

const BOX_HEIGHT = 40;
const LABEL_CHARS = 30;
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const it = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) it.setAttribute(key, value);
  if (text !== undefined) it.textContent = text;
  return it;
}

function shortened(text) {
  const characters = [...text];
  return characters.length > LABEL_CHARS ? characters.slice(0, LABEL_CHARS - 1).join("") + "…" : text;
}

// Maps a state to a CSS class.
function stateClass(state) {
  return state === "failed, ignored" ? "ignored" : state.replace(/[^a-z_]/g, "");
}

function widthOf(text) {
  const context = (widthOf.canvas ??= document.createElement("canvas")).getContext("2d");
  context.font = getComputedStyle(document.body).font;
  return context.measureText(text).width;
}

// The longest usual second line of a box. Boxes with a state are at least as wide, so that the layout stays the same
// while states and durations change.
const WIDEST_SUBTITLE = "running, 59 min 59 s";

// Returns the layout of a graph. A layout of hundreds of nodes takes seconds, so it is calculated again only if the
// nodes or the edges have changed, and not for each new state.
function layout(figure, data) {
  const shape = JSON.stringify([data.nodes.map((node) => [node.id, !subtitle(node)]), data.edges.map((edge) => [edge.from, edge.to, edge.label])]);
  if (figure.shape !== shape) figure.graph = newLayout(data);
  figure.shape = shape;
  return figure.graph;
}

function newLayout(data) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 44, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of data.nodes) {
    const note = subtitle(node) ? Math.max(widthOf(subtitle(node)), widthOf(WIDEST_SUBTITLE)) : 0;
    const width = Math.max(widthOf(shortened(node.label)), note) + 26;
    graph.setNode(node.id, { width, height: subtitle(node) ? BOX_HEIGHT : 28 });
  }
  for (const edge of data.edges) {
    const label = edge.label ? { width: widthOf(edge.label) + 8, height: 16, labelpos: "c" } : {};
    graph.setEdge(edge.from, edge.to, label);
  }
  dagre.layout(graph);
  return graph;
}

function subtitle(node) {
  if (!node.state || node.state === "current") return "";
  return node.note ? `${node.state}, ${node.note}` : node.state;
}

// Returns a path through the points with rounded corners.
function path(points) {
  let text = `M${points[0].x},${points[0].y}`;
  for (let n = 1; n < points.length - 1; n++) {
    const middle = { x: (points[n].x + points[n + 1].x) / 2, y: (points[n].y + points[n + 1].y) / 2 };
    text += ` Q${points[n].x},${points[n].y} ${middle.x},${middle.y}`;
  }
  const last = points[points.length - 1];
  return `${text} L${last.x},${last.y}`;
}

function arrows() {
  const marker = (id, kind) => {
    const it = element("marker", { id, class: kind, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
    it.append(element("path", { d: "M0,0 L8,4 L0,8 z" }));
    return it;
  };
  const defs = element("defs", {});
  defs.append(marker("arrow", "arrow"), marker("arrow-critical", "arrow critical"));
  return defs;
}

function edgeElement(edge, at) {
  const group = element("g", { class: edge.critical ? "edge critical" : "edge" });
  const end = edge.critical ? "url(#arrow-critical)" : "url(#arrow)";
  group.append(element("path", { d: path(at.points), "marker-end": end }));
  if (edge.label) group.append(element("text", { x: at.x, y: at.y + 4, "text-anchor": "middle" }, edge.label));
  return group;
}

function nodeElement(node, at, base) {
  const [left, top] = [at.x - at.width / 2, at.y - at.height / 2];
  const group = element("g", { class: `node ${stateClass(node.state)}${node.critical ? " critical" : ""}` });
  group.append(
    element("title", {}, [node.label, subtitle(node), node.critical ? "on the critical path" : ""].filter(Boolean).join("\n")),
    element("rect", { x: left, y: top, width: at.width, height: at.height, rx: 6 }),
    element("rect", { class: "stripe", x: left, y: top, width: 6, height: at.height, rx: 3 }),
    element("text", { x: left + 15, y: top + 18 }, shortened(node.label)),
  );
  if (subtitle(node)) group.append(element("text", { class: "note", x: left + 15, y: top + 33 }, subtitle(node)));
  if (!node.path?.startsWith("/")) return group;
  const link = element("a", { href: base + node.path });
  link.append(group);
  return link;
}

function picture(figure, data, graph) {
  const { width, height } = graph.graph();
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  svg.append(arrows());
  for (const edge of data.edges) svg.append(edgeElement(edge, graph.edge(edge.from, edge.to)));
  for (const node of data.nodes) {
    const it = nodeElement(node, graph.node(node.id), figure.dataset.base);
    it.dataset.label = node.label;
    svg.append(it);
  }
  return svg;
}

// Zoom factors: from a graph of hundreds of tasks that fits the page to twice the size of the text.
const MIN_ZOOM = 0.05;
const MAX_ZOOM = 2;
const ZOOM_STEP = 1.25;

// Returns the node that a graph shows first: a failed task, or else the first task without parents.
function firstNode(data, graph) {
  const failed = data.nodes.find((node) => node.state === "failed");
  const current = data.nodes.find((node) => node.state === "current");
  const children = new Set(data.edges.map((edge) => edge.to));
  const node = failed ?? current ?? data.nodes.find((it) => !children.has(it.id)) ?? data.nodes[0];
  return graph.node(node.id);
}

// Zoom, search and scroll position of a figure.
function view(figure) {
  const canvas = figure.querySelector(".canvas");
  const tools = figure.querySelector(".graph-tools");
  let size = { width: 0, height: 0 };
  let zoom = 1;
  let matches = [];
  let shown = -1;
  const scale = (wanted, at = { x: canvas.clientWidth / 2, y: canvas.clientHeight / 2 }) => {
    const before = zoom;
    zoom = Math.min(MAX_ZOOM, Math.max(MIN_ZOOM, wanted));
    const svg = canvas.querySelector("svg");
    svg.setAttribute("width", size.width * zoom);
    svg.setAttribute("height", size.height * zoom);
    // The point below the pointer, or in the middle, stays where it is.
    canvas.scrollLeft = (canvas.scrollLeft + at.x) * (zoom / before) - at.x;
    canvas.scrollTop = (canvas.scrollTop + at.y) * (zoom / before) - at.y;
    tools.querySelector("output").textContent = `${Math.round(zoom * 100)} %`;
  };
  const center = (at) => canvas.scrollTo(at.x * zoom - canvas.clientWidth / 2, at.y * zoom - canvas.clientHeight / 2);
  const fit = () => scale(Math.min(1, (canvas.clientWidth - 2) / size.width, (canvas.clientHeight - 2) / size.height));
  const search = (text) => {
    const all = [...canvas.querySelectorAll("[data-label]")];
    const found = (it) => text && it.dataset.label.toLowerCase().includes(text.toLowerCase());
    for (const it of all) it.classList.toggle("found", Boolean(found(it)));
    matches = all.filter(found);
    shown = -1;
    tools.querySelector(".matches").textContent = text ? `${matches.length} found` : "";
  };
  // Scrolls to the next match. A graph that is zoomed out is shown at full size.
  const next = () => {
    if (!matches.length) return;
    shown = (shown + 1) % matches.length;
    const box = matches[shown].querySelector("rect") ?? matches[shown];
    if (zoom < 0.8) scale(1);
    const [x, y] = ["x", "y"].map((key) => Number(box.getAttribute(key)));
    center({ x: x + Number(box.getAttribute("width")) / 2, y });
  };
  tools.querySelector("[data-zoom=in]").addEventListener("click", () => scale(zoom * ZOOM_STEP));
  tools.querySelector("[data-zoom=out]").addEventListener("click", () => scale(zoom / ZOOM_STEP));
  tools.querySelector("[data-zoom=fit]").addEventListener("click", fit);
  tools.querySelector("[data-zoom=full]").addEventListener("click", () => scale(1));
  const input = tools.querySelector("input");
  input.addEventListener("input", () => search(input.value.trim()));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next();
  });
  // The wheel alone scrolls the page; with Ctrl, it zooms, as in maps.
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const { left, top } = canvas.getBoundingClientRect();
    scale(zoom * (event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP), { x: event.clientX - left, y: event.clientY - top });
  }, { passive: false });
  return {
    // Shows a drawing: the first time at its first node, later at the same place.
    show: (svg, data, graph) => {
      const first = size.width === 0;
      const { scrollLeft, scrollTop } = canvas;
      size = graph.graph();
      canvas.replaceChildren(svg);
      const large = canvas.scrollWidth > canvas.clientWidth || canvas.scrollHeight > canvas.clientHeight;
      if (first) tools.hidden = !large && data.nodes.length < 10;
      scale(zoom);
      search(input.value.trim());
      if (first) center(firstNode(data, graph));
      else canvas.scrollTo(scrollLeft, scrollTop);
    },
  };
}

// Redraws a figure only if its data has changed.
async function draw(figure) {
  const answer = await fetch(figure.dataset.graph, { headers: { accept: "application/json" } });
  if (!answer.ok) return;
  const text = await answer.text();
  if (text === figure.drawn || !text) return;
  figure.drawn = text;
  const data = JSON.parse(text);
  if (!data.nodes.length) return;
  figure.hidden = false;
  const graph = layout(figure, data);
  figure.view ??= view(figure);
  figure.view.show(picture(figure, data, graph), data, graph);
}

document.addEventListener("DOMContentLoaded", () => {
  const figures = [...document.querySelectorAll("figure[data-graph]")];
  const all = () => figures.forEach((figure) => draw(figure).catch(() => {}));
  all();
  document.body.addEventListener("tick", all);
});
