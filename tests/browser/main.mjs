// node main.mjs CONFIG: the parts that it names, in a browser. Exits with 1 and all faults if there are any.
import { fault, faults, launch } from "./browser.mjs";
import { door } from "./door.mjs";
import { night } from "./night.mjs";
import { pictures } from "./pictures.mjs";
import { screens } from "./screens.mjs";

const PARTS = { screens, door, night, pictures };

const config = JSON.parse(process.argv[2]);
const browser = await launch();
try {
  for (const part of config.parts) {
    try {
      await PARTS[part](browser, config);
    } catch (error) {
      fault(`${part}: ${error.stack.slice(0, 1500)}`);
    }
  }
} finally {
  await browser.close();
}
for (const text of faults) console.error(`fault: ${text}`);
process.exitCode = faults.length === 0 ? 0 : 1;
