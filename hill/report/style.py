"""How the page of a report looks, and the script that sorts and searches its table."""

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #f4f5f7; --line: #d5d7db; --faint: #595959;
  --for: 0 114 178; --against: 213 94 0; --c0: #0072b2; --c1: #d55e00; --c2: #00795b; --c3: #aa4a88; --c4: #77690a }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #eceef1; --paper: #15171b; --soft: #20242a;
  --line: #3d434c; --faint: #a9aeb6; --for: 60 160 220; --against: 235 130 50; --c0: #56b4e9; --c1: #f0893a;
  --c2: #2fc79b; --c3: #dd8fbf; --c4: #e0cf52 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; font: 1rem/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6rem; margin: 0 0 .3rem } h2 { font-size: 1.25rem; margin: 2.6rem 0 .4rem; break-after: avoid }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; break-after: avoid }
p { margin: .4rem 0; max-width: 50rem } .faint { color: var(--faint) } a { color: var(--c0) }
nav { margin: .8rem 0 } nav a { margin-right: 1rem; white-space: nowrap }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .7rem; margin: 1rem 0 }
.card { background: var(--soft); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem;
  break-inside: avoid }
.card b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums } .card span { font-size: .85rem }
.card i { display: block; font-style: normal; font-size: .8rem; color: var(--faint) }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(21rem, 1fr)); gap: 1rem }
figure { margin: .6rem 0; break-inside: avoid; max-width: 32rem } figcaption { font-weight: 600; font-size: .95rem }
svg text { font-size: 12px; fill: var(--faint) } figure > svg { width: 100%; height: auto }
.legend { list-style: none; margin: 0; padding: 0 0 0 1rem; font-size: .85rem; display: flex; flex-wrap: wrap;
  gap: 0 1rem }
.ruler { stroke: var(--line); stroke-width: 1 } .guide { stroke: var(--faint); stroke-dasharray: 3 3 }
polyline, path { fill: none; stroke-width: 2.2 } .l0 { stroke: var(--c0) } .l1 { stroke: var(--c1);
  stroke-dasharray: 7 4 } .l2 { stroke: var(--c2) } .l3 { stroke: var(--c3); stroke-dasharray: 2 3 }
.l4 { stroke: var(--c4); stroke-dasharray: 9 3 2 3 }
.f0 { fill: var(--c0) } .f1 { fill: var(--c1) } .f2 { fill: var(--c2) } .f3 { fill: var(--c3) } .f4 { fill: var(--c4) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0 }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
tr { break-inside: avoid } .told { display: block; min-width: 13rem }
thead th { vertical-align: bottom; background: var(--soft) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer }
th button::after { content: " \\2195"; color: var(--faint) }
th[aria-sort=ascending] button::after { content: " \\2191"; color: inherit }
th[aria-sort=descending] button::after { content: " \\2193"; color: inherit }
#all thead th { position: sticky; top: 0 } #all td:first-child { max-width: 28rem; overflow-wrap: anywhere }
#tall { max-height: 38rem; overflow: auto; border: 1px solid var(--line) } #all { margin: 0; width: 100% }
input { font: inherit; color: inherit; background: var(--paper); border: 1px solid var(--line); border-radius: .3rem;
  padding: .3rem .6rem; width: 20rem; max-width: 100% }
.bar { display: inline-block; height: .7rem; background: var(--c0); print-color-adjust: exact }
article { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem 1rem; margin: .8rem 0;
  break-inside: avoid }
article p { max-width: none } .text { overflow-wrap: anywhere; line-height: 1.75 }
.for, .against { border-radius: .2rem; border-bottom: 2px solid transparent; print-color-adjust: exact }
.for { background: rgb(var(--for) / calc(var(--part) * .5)); border-bottom-color: rgb(var(--for) / var(--part)) }
.against { background: rgb(var(--against) / calc(var(--part) * .5));
  border-bottom: 2px dashed rgb(var(--against) / var(--part)) }
@media print { body { max-width: none; padding: 0; font-size: 10pt } nav, .search { display: none }
  #tall { max-height: none; overflow: visible; border: 0 } #all thead th { position: static } }
"""

SCRIPT = """
const table = document.getElementById("all"), body = table.tBodies[0], rows = [...body.rows];
const heads = [...table.tHead.rows[0].cells], count = document.getElementById("count");
const key = (row, column) => row.cells[column].dataset.key;
function sort(column) {
  const head = heads[column], number = head.classList.contains("n");
  const down = head.ariaSort ? head.ariaSort === "ascending" : number;
  const compare = number ? (a, b) => key(a, column) - key(b, column)
    : (a, b) => key(a, column).localeCompare(key(b, column));
  const blank = (a, b) => !key(a, column) - !key(b, column);
  rows.sort((a, b) => blank(a, b) || (down ? compare(b, a) : compare(a, b)));
  for (const other of heads) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}
function search(words) {
  let shown = 0;
  for (const row of rows) {
    const text = row.cells[0].textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    shown += !row.hidden;
  }
  count.textContent = `${shown} of ${rows.length}`;
}
heads.forEach((head, column) => head.firstChild.addEventListener("click", () => sort(column)));
document.getElementById("search").addEventListener("input",
  event => search(event.target.value.toLowerCase().split(/\\s+/).filter(Boolean)));
"""
