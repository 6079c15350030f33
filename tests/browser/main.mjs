// node main.mjs CONFIG: runs the parts named in the configuration in a browser. Prints the steps and the submitted
// forms. Prints all faults and exits with 1 if there are any.
import * as actions from "./actions.mjs";
import { fault, faults, launch, open, posted } from "./browser.mjs";
import { freshness } from "./freshness.mjs";
import { signIn } from "./sign_in.mjs";
import * as incidents from "./incidents.mjs";
import * as keyboard from "./keyboard.mjs";
import { report } from "./report.mjs";
import { screenshots } from "./screenshots.mjs";
import { screens } from "./screens.mjs";
import { times } from "./times.mjs";

const WITH_BROWSER = { freshness, times, screens, signIn, screenshots };
const WITH_PAGE = { ...incidents, ...keyboard, ...actions, report };

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
      const result = await run(part);
      console.log(`${part}: ${result ?? "done"}`);
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
