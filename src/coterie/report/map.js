// The maps of the clients and of samples: one figure each that is built anew for every round and view.
const BEYOND = 4095; // of the whole steps along an axis; more marks a place that is not known
const UNPLACED = "#8B929C";
const ATTACKER = "#D43A2F"; // the edge of a client that attacks
const EDGE = "#FFFFFF";

function unpack(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = Kind.BYTES_PER_ELEMENT;
  const read = Kind === Int16Array ? "getInt16" : "getUint16";
  return Kind.from({ length: bytes.length / size }, (_, i) => view[read](i * size, true));
}

const escaped = (value) =>
  String(value).replace(/[&<>]/g, (character) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[character]);

// What is said of a client under the pointer: its line in the table, with the cluster of the round.
function hoverText(row, cluster, map, table) {
  const client = map.clients ? map.clients[row] : row;
  const known = table
    ? table.columns.map((column) => {
        const value = column.key === "cluster" ? cluster : column.values[client];
        return `${escaped(column.label)} ${value === null ? "–" : escaped(write[column.kind](value))}`;
      })
    : [`client ${client}`, `found cluster ${cluster}`, ...(map.true ? [`true cluster ${escaped(map.true[row])}`] : [])];
  return known.join("<br>");
}

function mapFigure(map, table, frame, view) {
  const points = unpack(frame.points, Uint16Array);
  const found = frame.cluster && unpack(frame.cluster, Int16Array);
  const labels = view === "true" ? map.true : found;
  const others = view === "true" ? found : map.true;
  const colours = map.colours[view];
  const shapes = map.shapes[view];
  const kind = view === "true" ? "true cluster" : "cluster";
  const groups = new Map(Object.keys(colours).map((label) => [label, []]));
  const rest = [];
  for (let row = 0; row < points.length / 2; row += 1) {
    const label = labels ? String(labels[row]) : "";
    if (points[2 * row] <= BEYOND) (groups.get(label) || rest).push(row);
  }
  const out = new Set(frame.excluded || []);
  const attacks = (row) => Boolean(map.attacker && map.attacker[row]);
  // Who was excluded in the round is hollow.
  const symbol = (row) => ((others && shapes[others[row]]) || "circle") + (out.has(row) ? "-open" : "");
  const trace = (rows, name, colour) => ({
    type: "scatter",
    mode: "markers",
    name,
    meta: { colour }, // of the legend
    x: rows.map((row) => points[2 * row]),
    y: rows.map((row) => points[2 * row + 1]),
    text: rows.map((row) => hoverText(row, found ? found[row] : null, map, table)),
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      // The edge of what is hollow has the colour of the marker.
      color: map.attacker ? rows.map((row) => (attacks(row) && out.has(row) ? ATTACKER : colour)) : colour,
      size: points.length <= 1000 ? 9 : 6,
      opacity: 0.85,
      symbol: others || out.size ? rows.map(symbol) : "circle",
      line: map.attacker
        ? {
            width: rows.map((row) => (attacks(row) ? 2.5 : 0.75)),
            color: rows.map((row) => (attacks(row) ? ATTACKER : EDGE)),
          }
        : { width: out.size ? rows.map((row) => (out.has(row) ? 2 : 0.75)) : 0.75 },
    },
  });
  const data = [...groups]
    .filter(([, rows]) => rows.length)
    .map(([label, rows]) => trace(rows, `${kind} ${label}`, colours[label]));
  if (rest.length) data.push(trace(rest, groups.size ? "other or no cluster" : "clients", UNPLACED));
  const axis = {
    range: [-0.04 * BEYOND, 1.04 * BEYOND],
    showticklabels: false,
    ticks: "",
    zeroline: false,
    showgrid: false,
    showline: true,
    mirror: true,
    fixedrange: drag === false,
  };
  return {
    data,
    layout: { hovermode: "closest", xaxis: { ...axis }, yaxis: { ...axis } },
  };
}

// `table` tells of every point, by its row or by that of its client.
function startMap(name, map, table) {
  const section = document.getElementById(name);
  const chart = section.querySelector("[data-figure]");
  const slider = section.querySelector("input");
  const told = section.querySelector("output");
  const play = section.querySelector(".slider button");
  let view = map.views[0];
  let place = map.frames.length - 1;
  let timer;

  function build() {
    const frame = map.frames[place];
    figures[name] = mapFigure(map, table, frame, view);
    if (told) told.textContent = `round ${frame.round}`;
    for (const text of section.querySelectorAll(".drawn")) text.textContent = frame.drawn || "models";
    for (const caption of section.querySelectorAll("[data-caption]")) caption.hidden = caption.dataset.caption !== view;
  }

  function show() {
    build();
    draw(chart);
    drawLegend(chart);
  }

  function stop() {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "▶";
    play.setAttribute("aria-label", "Play");
  }

  function go(to) {
    place = to;
    slider.value = to;
    show();
  }

  for (const button of section.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => {
      press(button);
      view = button.dataset.view;
      show();
    });
  }
  slider?.addEventListener("input", () => {
    if (timer) stop();
    go(Number(slider.value));
  });
  play?.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "❚❚";
    play.setAttribute("aria-label", "Pause");
    go(place === map.frames.length - 1 ? 0 : place);
    timer = setInterval(() => {
      // The page may have been renewed meanwhile.
      if (place === map.frames.length - 1 || !section.isConnected) return stop();
      go(place + 1);
    }, 900);
  });
  build();
}
