// Takes the screenshots of docs/console.md.
import { mkdirSync, statSync } from "node:fs";
import { fault, open, visit } from "./browser.mjs";

const MAX_BYTES = 150_000;

export async function screenshots(browser, config) {
  const { folder, screens } = config.screenshots;
  mkdirSync(folder, { recursive: true });
  const told = [];
  for (const { name, path, width = 1280, height = 860 } of screens) {
    const { context, page } = await open(browser, config, { viewport: { width, height } });
    await visit(page, config, path);
    await page.evaluate(() => document.fonts.ready);
    const file = `${folder}/${name}.png`;
    await page.screenshot({ path: file });
    await context.close();
    const { size } = statSync(file);
    if (size > MAX_BYTES) fault(`${name}.png has ${size} bytes`);
    told.push(`${name}.png ${size} bytes`);
  }
  return told.join(", ");
}
