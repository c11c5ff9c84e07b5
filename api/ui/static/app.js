// The start of the page.
import { html, render } from "./core/preact.js";
import { Shell } from "./parts/shell.js";

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${Shell} />`, place);
