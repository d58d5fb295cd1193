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
  event => search(event.target.value.toLowerCase().split(/\s+/).filter(Boolean)));
