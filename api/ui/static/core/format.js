// Figures as text. An absent figure is an en dash, never a zero.
const ABSENT = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

const absent = (value) => value === null || value === undefined || Number.isNaN(value);

/** 30,123 */
export const count = (value) => (absent(value) ? ABSENT : whole.format(value));

/** 980, 30.1k, 2.4M */
export function short(value) {
  if (absent(value)) return ABSENT;
  if (value < 1000) return whole.format(value);
  if (value < 999_950) return `${tenth.format(value / 1000)}k`;
  return `${tenth.format(value / 1_000_000)}M`;
}

/** 7.4, 74, 740 */
export const rate = (value) =>
  absent(value) ? ABSENT : value > 0 && value < 10 ? tenth.format(value) : whole.format(value);

/** 0 B, 512 MB, 3.4 GB; in powers of 1024, like the settings. */
export function bytes(value) {
  if (absent(value)) return ABSENT;
  let rest = value;
  for (const unit of ["B", "KB", "MB"]) {
    if (rest < 1024) return `${whole.format(rest)} ${unit}`;
    rest /= 1024;
  }
  return rest < 1024 ? `${tenth.format(rest)} GB` : `${tenth.format(rest / 1024)} TB`;
}

/** 12 ms, 3.4 s, 2 min 5 s, 1 h 4 min */
export function duration(ms) {
  if (absent(ms)) return ABSENT;
  if (ms < 1000) return `${whole.format(ms)} ms`;
  if (ms < 59_950) return `${tenth.format(ms / 1000)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const seconds = (value) => (absent(value) ? ABSENT : duration(value * 1000));

/** 0 %, 97 %, 100 % only where it is whole. */
export function percent(share) {
  if (absent(share)) return ABSENT;
  return `${share >= 1 ? 100 : Math.min(99, Math.round(share * 100))} %`;
}

/** A share of two counts; absent where the whole is 0. */
export const share = (part, all) => (absent(part) || !all ? null : part / all);

/** 14:03:22 in the reader's time zone; with the day where it is another day. */
export function clock(at, now = Date.now()) {
  if (absent(at)) return ABSENT;
  const date = new Date(at);
  const time = date.toLocaleTimeString("en-GB");
  const sameDay = date.toDateString() === new Date(now).toDateString();
  return sameDay ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

/** 5 s ago, 3 min ago, 2 h ago */
export function ago(at, now = Date.now()) {
  if (absent(at)) return ABSENT;
  const passed = Math.max(0, Math.round((now - new Date(at).getTime()) / 1000));
  if (passed < 60) return `${passed} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  return passed < 86_400 ? `${Math.floor(passed / 3600)} h ago` : `${Math.floor(passed / 86_400)} d ago`;
}

/** The estimated rest of a job: "3.0 s", or "3.0 s – 40.0 s" where the answer may be much longer. */
export function rest(usual, most) {
  if (absent(usual) || absent(most) || most <= 1.5 * usual) return seconds(usual);
  return `${seconds(usual)} – ${seconds(most)}`;
}

/** The id of a line of a batch ends in its number, eight hex digits. */
const LINE = /^job-[0-9a-f]{20}([0-9a-f]{4})(0000[0-9a-f]{4})$/;

/** The part of an id that differs between ids of the same minute: its end; "1a2b·7" for line 7 of a batch. */
export function shortId(id) {
  const line = LINE.exec(id);
  if (line) return `${line[1]}·${Number.parseInt(line[2], 16)}`;
  return id.length > 14 ? id.slice(-6) : id;
}
