// A table that draws only the rows in sight, so that ten thousand cost as much as fifty.
import { useNarrow } from "../core/media.js";
import { Component, html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "../core/preact.js";

/** Height of a row, and of the head that stays above the rows. */
const ROW_PX = 28;
/** Rows drawn above and below those in sight. */
const SPARE = 10;
/** Rows below those in sight at which the next ones are asked for. */
const AHEAD = 100;

/**
 * Props: `label`, `rows`, `keyOf(row)`, `columns` (`{name, title, width, narrow, numeric, cell(row)}`; `narrow` is
 * the width on a phone, or `false` where the column is left out there),
 * `minWidth` (below it the list scrolls sideways), `onOpen(row)` for Enter and double click, `onEnd()` when the end comes near, `empty` (text).
 *
 * Arrow keys, Page Up, Page Down, Home and End move the focused row.
 */
export function WindowedList({ label, rows, keyOf, columns: all, onOpen, onEnd, minWidth = "40rem", empty = "Nothing here." }) {
  const isNarrow = useNarrow();
  const columns = isNarrow ? all.filter((column) => column.narrow !== false) : all;
  const box = useRef(null);
  const [view, setView] = useState({ first: 0, last: 40 });
  const [active, setActive] = useState(-1);
  const wantsFocus = useRef(false);

  const measure = useCallback(() => {
    const { scrollTop, clientHeight } = box.current;
    const first = Math.max(0, Math.floor(scrollTop / ROW_PX) - SPARE);
    const last = Math.ceil((scrollTop + clientHeight) / ROW_PX) + SPARE;
    setView((old) => (old.first === first && old.last === last ? old : { first, last }));
  }, []);

  useLayoutEffect(() => {
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [measure]);

  useEffect(() => {
    if (onEnd && view.last >= rows.length - AHEAD) onEnd();
  }, [view.last, rows.length, onEnd]);

  useLayoutEffect(() => {
    if (!wantsFocus.current) return;
    wantsFocus.current = false;
    box.current.querySelector(`[data-index="${active}"]`)?.focus({ preventScroll: true });
  });

  const move = (to) => {
    const index = Math.max(0, Math.min(rows.length - 1, to));
    reveal(box.current, index);
    measure();
    wantsFocus.current = true;
    setActive(index);
  };
  const onKeyDown = (event) => {
    const page = Math.max(1, Math.floor(box.current.clientHeight / ROW_PX) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step !== undefined && rows.length > 0) {
      event.preventDefault();
      move(active < 0 ? 0 : active + step);
    } else if (event.key === "Enter" && event.target.getAttribute("role") === "row" && rows[active]) {
      onOpen?.(rows[active]);
    }
  };

  const isDrawn = active >= view.first && active < view.last && active < rows.length;
  const tabStop = isDrawn ? active : Math.min(view.first + (view.first && SPARE), rows.length - 1);
  const template = columns.map((column) => (isNarrow && column.narrow) || column.width).join(" ");
  return html`
    <div class="list" ref=${box} onScroll=${measure}>
      <div class="list-frame" role="grid" aria-label=${label} aria-rowcount=${rows.length + 1}
        style=${{ minWidth: isNarrow ? "0" : minWidth }} onKeyDown=${onKeyDown}>
        <div role="rowgroup" class="list-head">
          <div class="list-row" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template }}>
            ${columns.map((column) => html`<div key=${column.name} role="columnheader" class=${cellClass(column)}>${column.title}</div>`)}
          </div>
        </div>
        <div role="rowgroup" class="list-space" style=${{ height: `${rows.length * ROW_PX}px` }}>
          ${rows.slice(view.first, view.last).map((row, offset) => {
            const index = view.first + offset;
            return html`<${Row} key=${keyOf(row)} row=${row} index=${index} columns=${columns} template=${template}
              isTabStop=${index === tabStop} onFocus=${setActive} onOpen=${onOpen} />`;
          })}
        </div>
      </div>
      ${rows.length === 0 && html`<p class="empty">${empty}</p>`}
    </div>`;
}

/** A row, drawn again only when what it shows has changed; most rows stay while the list scrolls. */
class Row extends Component {
  shouldComponentUpdate(next) {
    return ROW_PROPS.some((name) => next[name] !== this.props[name]);
  }

  render({ row, index, columns, template, isTabStop, onFocus, onOpen }) {
    return html`<div
      class="list-row"
      role="row"
      aria-rowindex=${index + 2}
      data-index=${index}
      tabindex=${isTabStop ? 0 : -1}
      style=${{ gridTemplateColumns: template, transform: `translateY(${index * ROW_PX}px)` }}
      onFocus=${() => onFocus(index)}
      onDblClick=${() => onOpen?.(row)}
    >${columns.map((column) => html`<div key=${column.name} role="gridcell" class=${cellClass(column)}>${column.cell(row)}</div>`)}</div>`;
  }
}

const ROW_PROPS = ["row", "index", "template", "isTabStop"];

const cellClass = (column) => (column.numeric ? "cell numeric" : "cell");

function reveal(box, index) {
  const top = index * ROW_PX;
  // The head covers the first row's height of what is in sight.
  const bottom = top + 2 * ROW_PX - box.clientHeight;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (bottom > box.scrollTop) box.scrollTop = bottom;
}
