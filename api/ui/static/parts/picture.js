// An image as pixels: the policy of the page loads no image but its own, and a canvas loads nothing.
import { html, useEffect, useRef, useState } from "../core/preact.js";

const SIDE_MAX = 240;

/** Return a file as a data URL. */
export const urlOf = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

/** Props: `url` (a data URL), `label`. */
export function Picture({ url, label }) {
  const canvas = useRef(null);
  const [fault, setFault] = useState(false);
  useEffect(() => {
    let isCurrent = true;
    drawn(url).then((bitmap) => isCurrent && draw(canvas.current, bitmap), () => isCurrent && setFault(true));
    return () => (isCurrent = false);
  }, [url]);
  if (fault) return html`<span class="muted">${label} cannot be shown</span>`;
  return html`<canvas ref=${canvas} class="picture" role="img" aria-label=${label} width="0" height="0"></canvas>`;
}

async function drawn(url) {
  const bytes = Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (one) => one.charCodeAt(0));
  return createImageBitmap(new Blob([bytes]));
}

function draw(canvas, bitmap) {
  const scale = Math.min(1, SIDE_MAX / Math.max(bitmap.width, bitmap.height));
  canvas.width = Math.max(1, bitmap.width * scale);
  canvas.height = Math.max(1, bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
}
