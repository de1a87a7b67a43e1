// The list of all clients: pages, order and filter.
const PAGE = 50;

const write = {
  label: (value) => String(value),
  count: (value) => value.toLocaleString("en"),
  percent: (value) => `${(100 * value).toFixed(1)}%`,
  decimal: (value) => String(Number(value.toPrecision(4))),
};

// "17" is a part of a client's name; "cluster=2" and "accuracy<80%" compare a column.
function condition(term, columns) {
  const [, key, sign, wanted] = term.match(/^(\w+)([=<>])(.+)$/) || [];
  const column = columns.find((c) => c.key === key);
  if (!column) {
    return (row) => String(columns[0].values[row]).toLowerCase().includes(term.toLowerCase());
  }
  const bound = wanted.endsWith("%") ? parseFloat(wanted) / 100 : Number(wanted);
  if (sign === "=") {
    return (row) => String(column.values[row]) === wanted || column.values[row] === bound;
  }
  const below = sign === "<";
  return (row) => column.values[row] !== null && (below ? column.values[row] < bound : column.values[row] > bound);
}

function compare(a, b) {
  return typeof a === "number" && typeof b === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
}

function listClients(tables) {
  const section = document.getElementById("clients");
  const choice = section.querySelector(".switch");
  const filter = section.querySelector("input");
  const pages = section.querySelector(".pages span");
  const [previous, next] = section.querySelectorAll(".pages button");
  const head = section.querySelector("thead");
  const body = section.querySelector("tbody");
  let columns;
  let sorted;
  let descending;
  let page;

  function rows() {
    const conditions = filter.value.split(/\s+/).filter(Boolean).map((term) => condition(term, columns));
    const kept = [...columns[0].values.keys()].filter((row) => conditions.every((holds) => holds(row)));
    if (!sorted) return kept;
    const { values } = sorted;
    const sense = descending ? -1 : 1;
    // A missing value is neither small nor large: it goes last in both directions.
    return kept.sort(
      (a, b) => (values[a] === null) - (values[b] === null) || sense * compare(values[a], values[b]),
    );
  }

  function cell(column, row) {
    const element = document.createElement("td");
    const value = column.values[row];
    if (column.kind !== "label") element.className = "number";
    if (column.colours && column.colours[value]) {
      const dot = document.createElement("i");
      dot.className = "dot";
      dot.style.color = column.colours[value];
      element.append(dot);
    }
    element.append(value === null ? "–" : write[column.kind](value));
    return element;
  }

  function show() {
    const kept = rows();
    const last = Math.max(0, Math.ceil(kept.length / PAGE) - 1);
    page = Math.min(page, last);
    const start = page * PAGE;
    body.replaceChildren(
      ...kept.slice(start, start + PAGE).map((row) => {
        const line = document.createElement("tr");
        line.append(...columns.map((column) => cell(column, row)));
        return line;
      }),
    );
    const total = write.count(kept.length);
    pages.textContent = kept.length ? `${write.count(start + 1)}–${write.count(Math.min(start + PAGE, kept.length))} of ${total}` : "none";
    previous.disabled = page === 0;
    next.disabled = page === last;
    [...head.querySelectorAll("th")].forEach((header, i) => {
      if (columns[i] === sorted) header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
  }

  function sortBy(column) {
    descending = column === sorted && !descending;
    sorted = column;
    page = 0;
    show();
  }

  function open(table) {
    columns = table.columns;
    sorted = undefined;
    descending = false;
    page = 0;
    const line = document.createElement("tr");
    for (const column of columns) {
      const header = document.createElement("th");
      header.scope = "col";
      if (column.kind !== "label") header.className = "number";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = column.label;
      button.addEventListener("click", () => sortBy(column));
      header.append(button);
      line.append(header);
    }
    head.replaceChildren(line);
    const example = columns.some((c) => c.key === "accuracy") ? "accuracy<80%" : "loss>0.5";
    filter.placeholder = "Filter by client or column";
    section.querySelector(".hint").textContent =
      `For example cluster=2 ${example}. Columns: ${columns.map((c) => c.key).join(", ")}.`;
    show();
  }

  tables.forEach((table, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = table.name;
    button.setAttribute("aria-pressed", String(i === 0));
    button.addEventListener("click", () => {
      press(button);
      open(table);
    });
    choice.append(button);
  });
  choice.hidden = tables.length < 2;
  filter.addEventListener("input", () => {
    page = 0;
    show();
  });
  previous.addEventListener("click", () => {
    page -= 1;
    show();
  });
  next.addEventListener("click", () => {
    page += 1;
    show();
  });
  section.hidden = false;
  open(tables[0]);
}
