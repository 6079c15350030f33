// Every reachable screen: no fault, no serious axe finding in light and dark mode, readable without JavaScript,
// and no wider than a phone or a small monitor.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fault, open, visit } from "./browser.mjs";

const WIDTHS = [1280, 390];

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

// Screens that differ only in the object that they show.
const shape = (path) => path.replace(/\?.*/, "?").replace(/\d+/g, "N").replace(/[0-9a-f-]{36}/g, "ID")
  .replace(/(queue|group|schedule|relation|table)s\/[^/?]+/, "$1s/NAME");

// The screens of the navigation, one of each kind that they link to, and the configured ones.
export async function reachable(browser, config) {
  const { context, page } = await open(browser, config);
  const found = new Map(config.more.map((path) => [path, path]));
  const collect = async (selector) => {
    const hrefs = await page.$$eval(selector, (links) => links.map((it) => it.getAttribute("href")));
    for (const href of hrefs) {
      const url = new URL(href, page.url());
      if (url.origin !== new URL(config.url).origin || url.hash) continue;
      // The full text of a long value, as JSON.
      if (url.pathname.startsWith("/api/") || url.pathname.endsWith("/download")) continue;
      const path = url.pathname + url.search;
      if (!found.has(shape(path))) found.set(shape(path), path);
    }
  };
  await page.goto(config.url);
  await collect("nav a");
  const named = [...found.values()];
  for (const path of named) {
    await page.goto(new URL(path, config.url).href);
    await collect("main a[href]");
  }
  await context.close();
  return [...new Set(found.values())];
}

// Returns the serious axe findings of the page.
export async function findings(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return violations
    .filter((it) => ["serious", "critical"].includes(it.impact))
    .map((it) => `${it.id} (${it.impact}): ${it.help}: ${it.nodes.slice(0, 3).map((node) => node.html.slice(0, 160)).join(" | ")}`);
}

// Only tables, statements and graphs may be wider; they scroll on their own.
async function fits(page, path, width) {
  await page.setViewportSize({ width, height: 860 });
  // Plots are redrawn shortly after the window has changed.
  const fitting = page.waitForFunction((width) => document.documentElement.scrollWidth <= width, width, { timeout: 3000 });
  if (await fitting.then(() => true, () => false)) return;
  const is = await page.evaluate(() => document.documentElement.scrollWidth);
  const wide = await page.evaluate((width) => {
    const inside = (it) => it.closest(".scroll, pre, nav, .hidden, .plot, .canvas") !== null;
    const all = [...document.querySelectorAll("body *")].filter((it) => !inside(it) && it.getBoundingClientRect().right > width + 1);
    return all.slice(-2).map((it) => it.outerHTML.slice(0, 120));
  }, width);
  fault(`${path}: ${is} pixels wide on a screen of ${width}: ${wide.join(" | ")}`);
}

async function visited(browser, config, paths, colorScheme) {
  const { context, page } = await open(browser, config, { colorScheme });
  for (const path of paths) {
    await page.setViewportSize({ width: WIDTHS[0], height: 860 });
    const answer = await visit(page, config, path);
    if (answer.status() !== 200) fault(`${path}: status ${answer.status()}`);
    for (const text of await findings(page)) fault(`${path} in ${colorScheme}: ${text}`);
    if (colorScheme === "light") for (const width of WIDTHS) await fits(page, path, width);
  }
  await context.close();
}

async function withoutScript(browser, config, paths) {
  const { context, page } = await open(browser, config, { javaScriptEnabled: false });
  for (const path of paths) {
    await page.goto(new URL(path, config.url).href);
    const text = await page.locator("main").innerText();
    if (text.trim().length < 20) fault(`${path}: nothing to read without JavaScript: "${text}"`);
    for (const fact of config.facts[path] ?? []) {
      if (!text.includes(fact)) fault(`${path}: "${fact}" cannot be read without JavaScript`);
    }
  }
  await context.close();
}

export async function screens(browser, config) {
  const paths = await reachable(browser, config);
  for (const path of Object.keys(config.facts)) {
    if (!paths.includes(path)) fault(`nothing leads to ${path}`);
  }
  await visited(browser, config, paths, "light");
  await visited(browser, config, paths, "dark");
  await withoutScript(browser, config, paths);
  return `${paths.length} screens: ${paths.join(" ")}`;
}
