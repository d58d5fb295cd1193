// The keyboard in a tree, as the ARIA tree pattern has it: arrows, Home, End, Enter, and letters to find a name.

export function listen(tree) {
  let typed = "";
  let last = 0;
  tree.root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const item = event.target.closest('[role="treeitem"]');
    if (!item) return;
    if (event.key.length === 1 && event.key !== " ") {
      typed = event.timeStamp - last > 700 ? event.key : typed + event.key;
      last = event.timeStamp;
      tree.focus(named(tree.root, item, typed.toLowerCase()) ?? item);
    } else if (!act(tree, item, event.key)) return;
    event.preventDefault();
  });
}

function act(tree, item, key) {
  const items = all(tree.root);
  const place = items.indexOf(item);
  switch (key) {
    case "ArrowDown":
      return move(tree, items[place + 1]);
    case "ArrowUp":
      return move(tree, items[place - 1]);
    case "Home":
      return move(tree, items[0]);
    case "End":
      return move(tree, items.at(-1));
    case "ArrowRight":
      return right(tree, item);
    case "ArrowLeft":
      return left(tree, item);
    case "Enter":
    case " ":
      tree.pick(item);
      return true;
  }
  return false;
}

const all = (root) => [...root.querySelectorAll('[role="treeitem"]')];

function move(tree, item) {
  if (item) tree.focus(item);
  return true;
}

function right(tree, item) {
  const open = item.getAttribute("aria-expanded");
  if (open === "false") tree.toggle(item, true);
  else if (open === "true") move(tree, item.querySelector('[role="treeitem"]'));
  return true;
}

function left(tree, item) {
  if (item.getAttribute("aria-expanded") === "true") tree.toggle(item, false);
  else move(tree, item.parentElement.closest('[role="treeitem"]'));
  return true;
}

// The next row whose name begins with what was typed; a first letter moves on, more letters may stay.
function named(root, item, typed) {
  const items = all(root);
  const from = items.indexOf(item) + (typed.length === 1 ? 1 : 0);
  const round = [...items.slice(from), ...items.slice(0, from)];
  return round.find((other) => other.getAttribute("aria-label").toLowerCase().startsWith(typed));
}
