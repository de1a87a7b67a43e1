(() => {
  "use strict";
  const { figures, tables } = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 50;

  // Charts take their text, grid and background from the style sheet, and again when it changes.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 600px)");
  // On a touch screen a drag over a chart must scroll the page and not zoom the chart.
  const drag = matchMedia("(pointer: coarse)").matches ? false : "zoom";

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const font = { family: getComputedStyle(document.body).fontFamily, color: colour("--text"), size: 13 };
    const axis = {
      gridcolor: colour("--rule"),
      linecolor: colour("--rule"),
      zerolinecolor: colour("--rule"),
      spikecolor: colour("--quiet"),
      spikethickness: 1,
      spikedash: "solid",
      automargin: true,
      title: { font: { color: colour("--quiet"), size: 12 }, standoff: 8 },
      tickfont: { color: colour("--quiet"), size: 12 },
    };
    return {
      data: {
        scatter: [{ marker: { line: { color: colour("--page") } } }],
        bar: [{ marker: { line: { color: colour("--page") } } }],
      },
      layout: {
        // Not transparent: plotly takes that for white and would outline hover lines against it.
        paper_bgcolor: colour("--page"),
        plot_bgcolor: colour("--page"),
        font,
        hoverlabel: {
          bgcolor: colour("--surface"),
          bordercolor: colour("--rule"),
          font,
          align: "left",
        },
        xaxis: axis,
        yaxis: axis,
      },
    };
  }

  function draw(chart) {
    const { data, layout } = figures[chart.dataset.figure];
    Plotly.react(
      chart,
      data,
      {
        ...layout,
        template: theme(),
        autosize: true,
        showlegend: false,
        dragmode: drag,
        margin: { l: narrow.matches ? 8 : 16, r: 8, t: 8, b: 8 },
        // A zoom survives a redraw of the same chart.
        uirevision: chart.dataset.figure,
      },
      { responsive: true, displaylogo: false, displayModeBar: false },
    );
  }

  // Plotly's own legend is cut off on a phone; buttons wrap, and can be reached by keyboard.
  function drawLegend(chart) {
    const legend = chart.previousElementSibling;
    legend.replaceChildren(
      ...figures[chart.dataset.figure].data.map((trace) => {
        const button = document.createElement("button");
        const swatch = document.createElement("i");
        const dash = trace.line && trace.line.dash;
        swatch.className = dash ? "curve" : "dot";
        if (dash) swatch.dataset.dash = dash;
        swatch.style.color = trace.line ? trace.line.color : trace.marker.color;
        button.type = "button";
        button.title = "Show or hide";
        button.append(swatch, trace.name);
        button.setAttribute("aria-pressed", String(trace.visible !== false));
        button.addEventListener("click", () => {
          trace.visible = trace.visible === false;
          button.setAttribute("aria-pressed", String(trace.visible));
          draw(chart);
        });
        return button;
      }),
    );
  }

  const charts = [...document.querySelectorAll("[data-figure]")];
  const drawAll = () => charts.forEach(draw);
  drawAll();
  charts.forEach(drawLegend);
  dark.addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);

  function press(chosen) {
    for (const button of chosen.parentElement.children) {
      button.setAttribute("aria-pressed", String(button === chosen));
    }
  }

  for (const button of document.querySelectorAll("[data-show]")) {
    button.addEventListener("click", () => {
      press(button);
      const section = button.closest("section");
      const chart = section.querySelector("[data-figure]");
      chart.dataset.figure = button.dataset.show;
      for (const caption of section.querySelectorAll("[data-view]")) {
        caption.hidden = caption.dataset.view !== button.dataset.show;
      }
      draw(chart);
      drawLegend(chart);
    });
  }

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

  function listClients() {
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
  if (tables.length) listClients();

  const copy = document.getElementById("copy");
  copy?.addEventListener("click", async () => {
    const command = document.getElementById("command");
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "Copied";
    } catch {
      // Some browsers give no clipboard to a file; then the reader's own copy key will do.
      getSelection().selectAllChildren(command);
      copy.textContent = "Selected";
    }
    setTimeout(() => {
      copy.textContent = "Copy";
    }, 2000);
  });
})();
