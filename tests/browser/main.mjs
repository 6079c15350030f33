// node main.mjs CONFIG: the parts that it names, in a browser. Prints what it did, and what was posted. Exits with 1
// and all faults if there are any.
import * as acts from "./acts.mjs";
import { fault, faults, launch, open, posted } from "./browser.mjs";
import { door } from "./door.mjs";
import * as drill from "./drill.mjs";
import * as keys from "./keys.mjs";
import { pictures } from "./pictures.mjs";
import { screens } from "./screens.mjs";

const WITH_BROWSER = { screens, door, pictures };
const WITH_PAGE = { ...drill, ...keys, ...acts };

const config = JSON.parse(process.argv[2]);
const browser = await launch();

async function run(part) {
  if (WITH_BROWSER[part]) return WITH_BROWSER[part](browser, config);
  const { context, page } = await open(browser, config);
  try {
    return await WITH_PAGE[part](page, config);
  } catch (error) {
    throw new Error(`at ${page.url()}: ${error.message}`);
  } finally {
    await context.close();
  }
}

try {
  for (const part of config.parts) {
    try {
      const said = await run(part);
      console.log(`${part}: ${said ?? "done"}`);
    } catch (error) {
      fault(`${part}: ${error.stack.slice(0, 1500)}`);
    }
  }
} finally {
  await browser.close();
}
console.log(`posted: ${JSON.stringify([...posted])}`);
for (const text of faults) console.error(`fault: ${text}`);
process.exitCode = faults.length === 0 ? 0 : 1;
