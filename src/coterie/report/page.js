// Begins the page, and where a run is watched renews it.
const POLL = 2000; // milliseconds

function offerToCopy() {
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
}

function start() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bare = typeof Plotly === "undefined";
  document.getElementById("bare").hidden = !bare;
  figures = bare ? {} : data.figures;
  if (bare) {
    if (data.tables.length) listClients(data.tables);
    offerToCopy();
    return;
  }
  if (data.map) startMap("map", data.map, data.tables[0]);
  if (data.sample_map) startMap("sample_map", data.sample_map, data.sample_map.table);
  startCharts();
  if (data.tables.length) listClients(data.tables);
  offerToCopy();
}

// The choices of a reader, taken from the old page and made again on the new one.
function choices() {
  const slider = document.querySelector(".slider input");
  const back = slider && slider.value !== slider.max ? slider.value : null;
  const pressed = document.querySelector("[data-view][aria-pressed=true]");
  return { back, view: pressed && pressed.dataset.view };
}

function choose({ back, view }) {
  const slider = document.querySelector(".slider input");
  if (slider && back !== null) {
    slider.value = back;
    slider.dispatchEvent(new Event("input"));
  }
  if (view) document.querySelector(`[data-view=${view}]`)?.click();
}

async function renew() {
  const text = await (await fetch("page")).text();
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const chosen = choices();
  const top = scrollY;
  charts.forEach((chart) => Plotly.purge(chart));
  document.querySelector("main").replaceWith(fresh.querySelector("main"));
  document.getElementById("data").textContent = fresh.getElementById("data").textContent;
  start();
  choose(chosen);
  scrollTo(0, top);
}

async function watch() {
  let stamp;
  for (;;) {
    let note = "live";
    try {
      const now = await (await fetch("stamp")).text();
      if (stamp !== undefined && stamp !== now) await renew();
      stamp = now;
    } catch {
      note = "no longer live: the server has ended";
    }
    const live = document.getElementById("live");
    if (live.textContent !== note) live.textContent = note;
    await new Promise((resolve) => setTimeout(resolve, POLL));
  }
}

start();
if ("live" in document.body.dataset) watch();
