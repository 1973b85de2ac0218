"""The looks of a report's page: its style, and the few lines of script that sort tables. Nothing is fetched."""

from __future__ import annotations

_LIGHT = """\
--page: #f6f7f9; --card: #fff; --ink: #1c2128; --soft: #59636e; --rule: #d9dee4;
  --bar: #b3bfcc; --winner: #0b62d6; --default: #b84a00; --good: #17742f; --bad: #b3261e; --warn: #fff3d6;
  --warn-ink: #6b4700;
  --pruned: #9db6d3; --merged: #a88bd0; --closed: #c9ced4; --left: #e4e7eb"""

FIGURE = """\
svg text { font-size: 12px; fill: var(--soft) }
svg .name { fill: var(--ink); font-weight: 600 } svg .unit { font-size: 11px }
svg text.winner { fill: var(--winner); font-weight: 600 } svg text.default { fill: var(--default) }
.rule { stroke: var(--rule); stroke-width: .7 } .bar { fill: var(--bar) } .track { fill: var(--left) }
.dots { stroke: var(--bar); stroke-width: 4.4; stroke-linecap: round }
.mark { stroke-width: 1.8; stroke: var(--soft) } .mark.winner { stroke: var(--winner) }
.mark.default { stroke: var(--default); stroke-dasharray: 4 3 } .span { stroke: var(--bar); stroke-width: 4;
  stroke-linecap: round }
.fill.winner { fill: var(--winner) } .hollow { fill: var(--card); stroke: var(--default); stroke-width: 1.6 }
.way { fill: none; stroke: var(--winner); stroke-width: 2 }
.fate.measured { fill: var(--winner) } .fate.pruned { fill: var(--pruned) } .fate.failed { fill: var(--bad) }
.fate.merged { fill: var(--merged) } .fate.closed { fill: var(--closed) } .fate.left { fill: var(--left) }
"""
"""Of what is drawn, by class."""

ALONE = f":root {{ {_LIGHT} }}\nsvg {{ font-family: system-ui, sans-serif }}\n{FIGURE}"
"""Of a figure that is a file of its own: in light colours, whatever shows it."""

CSS = (
    ":root { color-scheme: light dark; "
    + _LIGHT
    + """\
 }
@media (prefers-color-scheme: dark) { :root { --page: #0f1318; --card: #171c23; --ink: #e3e8ee;
  --soft: #98a3b0; --rule: #2f3842;
  --bar: #4b5968; --winner: #6cb0ff; --default: #ff9a57; --good: #5fce7c; --bad: #ff8b82; --warn: #3a2e12;
  --warn-ink: #f3d48c;
  --pruned: #41668f; --merged: #8467ad; --closed: #3d4650; --left: #262d35 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica,
  Arial, sans-serif }
main { max-width: 1240px; margin: 0 auto; padding: 20px 16px 60px }
h1 { font-size: 25px; line-height: 1.25; margin: 8px 0 4px; overflow-wrap: anywhere }
h2 { font-size: 19px; margin: 0 0 8px; overflow-wrap: anywhere } h3 { font-size: 14px; margin: 16px 0 6px }
p { margin: 6px 0; max-width: 95ch; overflow-wrap: anywhere } .soft, .note { color: var(--soft) }
.note { font-size: 13px }
.badge { display: inline-block; padding: 1px 9px; border-radius: 20px; border: 1px solid currentColor;
  font-size: 13px;
  text-transform: uppercase; letter-spacing: .04em; color: var(--winner) } .badge.replayed { color: var(--default) }
.warn { background: var(--warn); color: var(--warn-ink); padding: 8px 12px; border-radius: 8px }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 8px; margin: 16px 0 }
.facts div { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 8px 12px }
.facts b { display: block; font-size: 20px; font-variant-numeric: tabular-nums }
.facts span { color: var(--soft); font-size: 12.5px }
.part { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 14px 16px;
  margin: 12px 0 }
details.part > summary { cursor: pointer; overflow-wrap: anywhere } summary b { font-size: 16px }
summary .soft { margin-left: 8px }
details.fold { margin: 12px 0 } details.fold > summary { cursor: pointer; font-size: 14px; font-weight: 600 }
.figures { columns: 3 320px; column-gap: 28px; margin: 10px 0 }
figure { margin: 0 0 14px; max-width: 440px; break-inside: avoid }
figcaption { font-size: 13px; font-weight: 600; margin: 4px 0 }
svg { display: block; width: 100%; height: auto } """
    + FIGURE
    + """\
.scroll { overflow-x: auto; max-width: 100% } table { border-collapse: collapse; font-size: 13px }
th, td { text-align: left; padding: 4px 8px 4px 0; vertical-align: top; border-bottom: 1px solid var(--rule) }
th { color: var(--soft); font-weight: 600; vertical-align: bottom } td { min-width: 3em }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap } th.n { white-space: normal }
td.wide { min-width: 19em }
td.name { font-weight: 600; min-width: 19em } td.name code { font-weight: 400; color: var(--soft) }
td.good, td.bad, td.muted { min-width: 8.5em }
td code { overflow-wrap: anywhere } tbody tr:hover { background: color-mix(in srgb, var(--winner) 7%, transparent) }
code, pre { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
pre { white-space: pre-wrap; margin: 4px 0 }
.good { color: var(--good) } .bad { color: var(--bad) } .muted { color: var(--soft) }
th.sorts { cursor: pointer } th.sorts:hover, th[aria-sort] { color: var(--ink) }
th[aria-sort=ascending]::after { content: " \\2191" } th[aria-sort=descending]::after { content: " \\2193" }
@media (max-width: 560px) { main { padding: 12px 10px 40px } td.name { min-width: 14em }
  .part { padding: 12px 10px } h1 { font-size: 21px } }
@media print { .part, .facts div { break-inside: avoid } }
"""
)

SCRIPT = """\
for (const head of document.querySelectorAll("thead th")) {
  head.classList.add("sorts"); head.tabIndex = 0;
  const sort = () => {
    const table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = row => { const c = row.cells[at], v = c.dataset.v;
  return v === undefined ? c.textContent : Number(v) };
    const compare = (a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return down ? -order : order;
    };
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...body.rows].sort(compare));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); sort() } });
}
"""
