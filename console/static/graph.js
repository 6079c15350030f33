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

function layout(data) {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 14, ranksep: 44, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of data.nodes) {
    const width = Math.max(widthOf(shortened(node.label)), widthOf(subtitle(node))) + 26;
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
  for (const node of data.nodes) svg.append(nodeElement(node, graph.node(node.id), figure.dataset.base));
  return svg;
}

// Redraws a figure only if its data has changed, and keeps the scroll position.
async function draw(figure) {
  const answer = await fetch(figure.dataset.graph, { headers: { accept: "application/json" } });
  if (!answer.ok) return;
  const text = await answer.text();
  if (text === figure.drawn || !text) return;
  figure.drawn = text;
  const data = JSON.parse(text);
  if (!data.nodes.length) return;
  figure.hidden = false;
  const canvas = figure.querySelector(".canvas");
  const { scrollLeft, scrollTop } = canvas;
  canvas.replaceChildren(picture(figure, data, layout(data)));
  canvas.scrollTo(scrollLeft, scrollTop);
  const fit = figure.querySelector("[data-fit]");
  fit.hidden = canvas.scrollWidth <= canvas.clientWidth && canvas.scrollHeight <= canvas.clientHeight && !figure.classList.contains("fitted");
}

document.addEventListener("DOMContentLoaded", () => {
  const figures = [...document.querySelectorAll("figure[data-graph]")];
  const all = () => figures.forEach((figure) => draw(figure).catch(() => {}));
  all();
  document.body.addEventListener("tick", all);
  for (const figure of figures) {
    const fit = figure.querySelector("[data-fit]");
    fit.addEventListener("click", () => {
      fit.textContent = figure.classList.toggle("fitted") ? "full size" : "fit";
    });
  }
});
