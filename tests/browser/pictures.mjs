// The pictures of docs/console.md.
import { statSync } from "node:fs";
import { fault, open } from "./browser.mjs";

const MOST_BYTES = 150_000;

export async function pictures(browser, config) {
  const { context, page } = await open(browser, config);
  for (const [name, path] of Object.entries(config.pictures.screens)) {
    await page.goto(new URL(path, config.url).href);
    await page.waitForLoadState("networkidle");
    const file = `${config.pictures.folder}/${name}.png`;
    await page.screenshot({ path: file });
    const { size } = statSync(file);
    if (size > MOST_BYTES) fault(`${name}.png has ${size} bytes`);
    console.log(`${name}.png: ${size} bytes`);
  }
  await context.close();
}
