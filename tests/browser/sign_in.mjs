// Signs in at a console with a token, using the keyboard, and opens the page of a missing object.
import { fault, open } from "./browser.mjs";
import { findings } from "./screens.mjs";

// A browser reports every response above 399.
const REFUSED = ["the server responded with a status of 4"];

export async function signIn(browser, config) {
  for (const colorScheme of ["light", "dark"]) {
    const there = { url: config.signIn.url };
    const { context, page } = await open(browser, there, { colorScheme }, REFUSED);
    await page.goto(there.url);
    await page.waitForURL("**/login");
    for (const text of await findings(page)) fault(`/login in ${colorScheme}: ${text}`);
    await page.keyboard.type("not the token at all");
    await page.keyboard.press("Enter");
    await page.getByRole("alert").waitFor();
    // The field has the focus again.
    await page.keyboard.type(config.signIn.token);
    await page.keyboard.press("Tab");
    await page.keyboard.type(config.signIn.name);
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: `sign out ${config.signIn.name}` }).waitFor();
    await page.goto(new URL("nothing", there.url).href);
    for (const text of await findings(page)) fault(`the page for nothing in ${colorScheme}: ${text}`);
    await page.getByRole("link", { name: "Overview" }).click();
    await page.getByRole("button", { name: "sign out" }).click();
    await page.waitForURL("**/login");
    await context.close();
  }
}
