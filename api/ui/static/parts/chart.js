// A small chart of one figure over time.
import { html, useEffect, useMemo, useRef, useState } from "../core/preact.js";
import { cssColor, onColors } from "../core/theme.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT_PX = 88;
/** Few values are drawn as columns: each of them is a mean over its step. */
const COLUMNS_MAX = 30;
/** Steps between two times below a chart. */
const TIME_STEPS_S = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600];

/**
 * Props: `label`, `value` (the figure of now), `format`, `tone` (a CSS variable), `times` (seconds
 * since 1970), `values` (with `null` for gaps), `span` (what the chart covers, in words), `top`
 * (the top of the scale, where it is fixed).
 */
export function Chart({ label, value, format, tone, times, values, span, top = null }) {
  const place = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null);
  const shape = `${tone} ${times.length <= COLUMNS_MAX} ${top}`;
  const formatter = useRef(format);
  formatter.current = format;
  const data = useMemo(() => [times, values], [times, values]);

  useEffect(() => {
    // The observer and the next frame may outlive the element of this component.
    const box = place.current;
    let frame = 0;
    const make = () => {
      plot.current?.destroy();
      const text = (number) => formatter.current(number);
      plot.current = new uPlot(options(box, tone, text, times.length <= COLUMNS_MAX, top, setAt), data, box);
    };
    make();
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height: HEIGHT_PX }));
    observer.observe(box);
    const unsubscribe = onColors(() => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        make();
      });
    });
    return () => {
      cancelAnimationFrame(frame);
      unsubscribe();
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [data]);

  const known = values.filter((one) => one !== null);
  const spoken = known.length === 0 ? "nothing measured"
    : `between ${format(Math.min(...known))} and ${format(Math.max(...known))} in the last ${span}`;
  const shown = at === null || values[at] === undefined ? value : values[at];
  return html`
    <figure class="chart panel">
      <figcaption><span class="muted">${label}</span>
        <span class="chart-value">${format(shown)}</span>
        ${at !== null && times[at] && html`<time class="muted">${new Date(times[at] * 1000).toLocaleTimeString("en-GB")}</time>`}
        <span class="visually-hidden">${spoken}</span>
      </figcaption>
      <div ref=${place} class="chart-plot" aria-hidden="true"></div>
    </figure>`;
}

const clockTime = (at) => new Date(at * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

/** The next round number: the top of a scale. */
function roundTop(value) {
  if (value <= 1) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return unit * [1, 2, 4, 6, 8, 10].find((one) => one * unit >= value);
}

/** The marks of a scale, no two of which have the same text. */
function marks(high, format) {
  const middle = format(high / 2);
  return middle === format(0) || middle === format(high) ? [0, high] : [0, high / 2, high];
}

function options(place, tone, format, columns, top, setAt) {
  const color = cssColor(tone);
  const line = cssColor("--line");
  return {
    width: place.clientWidth || 200,
    height: HEIGHT_PX,
    padding: [6, 14, 0, 0],
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 5 } },
    hooks: { setCursor: [(one) => setAt(one.cursor.idx ?? null)] },
    scales: {
      x: { time: true },
      y: { range: (_, low, high) => [0, top ?? roundTop(high ?? 1)] },
    },
    axes: [
      {
        size: 16,
        gap: 2,
        space: 56,
        font: `10px ${cssColor("--sans")}`,
        stroke: cssColor("--muted"),
        grid: { show: false },
        ticks: { show: false },
        incrs: TIME_STEPS_S,
        values: (_, splits) => splits.map(clockTime),
      },
      {
        size: 44,
        gap: 4,
        font: `10px ${cssColor("--sans")}`,
        stroke: cssColor("--muted"),
        grid: { stroke: line, width: 1 },
        ticks: { show: false },
        splits: (_, axis, low, high) => marks(high, format),
        values: (_, splits) => splits.map((one) => format(one)),
      },
    ],
    series: [
      {},
      {
        stroke: color,
        width: 1.25,
        fill: `${color}26`,
        points: { show: false },
        paths: columns ? uPlot.paths.bars({ size: [0.7, 24] }) : undefined,
      },
    ],
  };
}
