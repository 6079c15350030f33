// The report of a load test: every plot has its lines, in the colours of the light and the dark page, and shows the
// values at the pointer.
import { fault } from "./browser.mjs";

// Returns the titles of the plots in which none of the lines is painted.
function unpainted() {
  const colour = ({ style }) => parseInt(getComputedStyle(document.body).getPropertyValue(`--c${style}`).slice(1), 16);
  const painted = (canvas) => {
    const { width, height } = canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width, height);
    const colours = new Set();
    for (let at = 0; at < data.length; at += 4) colours.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
    return colours;
  };
  return [...document.querySelectorAll("[data-plot]")].filter((box) => {
    const canvas = box.querySelector("canvas");
    if (!canvas) return true;
    const colours = painted(canvas);
    return !JSON.parse(box.dataset.plot).lines.some((line) => colours.has(colour(line)));
  }).map((box) => box.parentElement.querySelector("figcaption").textContent);
}

export async function report(page, config) {
  await page.goto(config.url);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    let left;
    for (let tries = 0; tries < 50; tries += 1) {
      left = await page.evaluate(unpainted);
      if (left.length === 0) break;
      await page.waitForTimeout(100);
    }
    if (left.length > 0) fault(`${colorScheme}: not drawn: ${left.join(", ")}`);
  }
  const plots = page.locator("[data-plot]");
  await plots.first().locator(".u-over").hover();
  const values = await plots.first().locator(".u-series:not(.round) .u-value").allTextContents();
  if (!values.every((value) => /[0-9]/.test(value))) fault(`no values at the pointer: ${values}`);
  return `${await plots.count()} plots`;
}
