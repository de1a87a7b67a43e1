// Charts take their text, grid and background from the style sheet, and again when it changes.
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 600px)");
// On a touch screen a drag over a chart must scroll the page and not zoom the chart.
const drag = matchMedia("(pointer: coarse)").matches ? false : "zoom";
// A saved figure is meant for paper, whatever the page looks like.
const PAPER = { "--text": "#000000", "--quiet": "#333333", "--rule": "#d9d9d9", "--page": "#ffffff", "--surface": "#ffffff" };

let figures = {};
let charts = [];

function theme(colours) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => (colours ? colours[name] : style.getPropertyValue(name).trim());
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
      sankey: [{ textfont: { color: colour("--text"), size: 12 } }],
    },
    layout: {
      // Not transparent: plotly takes that for white and would outline hover lines against it.
      paper_bgcolor: colour("--page"),
      plot_bgcolor: colour("--page"),
      font,
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--rule"), font, align: "left" },
      annotationdefaults: { font: { color: colour("--quiet"), size: 12 } },
      xaxis: axis,
      yaxis: axis,
    },
  };
}

function draw(chart) {
  const name = chart.dataset.figure;
  const { data, layout } = figures[name];
  Plotly.react(
    chart,
    data,
    {
      ...layout,
      template: theme(),
      autosize: true,
      showlegend: false,
      dragmode: drag,
      margin: { l: narrow.matches ? 8 : 16, r: 8, t: 8, b: 8, ...layout.margin },
      // A zoom survives a redraw of the same chart.
      uirevision: name,
    },
    { responsive: true, displaylogo: false, displayModeBar: false },
  );
}

// The bands around a curve come and go with it.
const together = (traces, trace) =>
  trace.legendgroup ? traces.filter((other) => other.legendgroup === trace.legendgroup) : [trace];

// Plotly's own legend is cut off on a phone; buttons wrap, and can be reached by keyboard.
function drawLegend(chart) {
  const legend = chart.previousElementSibling.querySelector(".legend");
  const traces = figures[chart.dataset.figure].data;
  legend.replaceChildren(
    ...traces
      .filter((trace) => trace.type !== "sankey" && trace.showlegend !== false)
      .map((trace) => {
        const button = document.createElement("button");
        const swatch = document.createElement("i");
        const dash = trace.line && trace.line.dash;
        swatch.className = dash ? "curve" : "dot";
        if (dash) swatch.dataset.dash = dash;
        swatch.style.color = trace.line ? trace.line.color : (trace.meta?.colour ?? trace.marker.color);
        button.type = "button";
        button.title = "Show or hide";
        button.append(swatch, trace.name);
        button.setAttribute("aria-pressed", String(trace.visible !== false));
        button.addEventListener("click", () => {
          const shown = trace.visible === false;
          for (const one of together(traces, trace)) one.visible = shown;
          button.setAttribute("aria-pressed", String(shown));
          draw(chart);
        });
        return button;
      }),
  );
}

// The figure as it is drawn, but on white and with a legend of its own. A figure that the page shows as a table says
// itself how large it is.
function saved(name) {
  const { data, layout } = figures[name];
  const chart = document.querySelector(`[data-figure="${name}"]`);
  return {
    data,
    layout: {
      width: Math.max(640, chart?.clientWidth ?? 0),
      height: Math.max(320, chart?.clientHeight ?? 0),
      ...layout,
      template: theme(PAPER),
      showlegend: data.filter((trace) => trace.showlegend !== false).length > 1,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      margin: { l: 16, r: 16, t: 16, b: 16, ...layout.margin },
    },
  };
}

function offerToSave(buttons) {
  const name = buttons.dataset.of;
  for (const button of buttons.querySelectorAll("[data-save]")) {
    const format = button.dataset.save;
    button.title = `Save this figure as ${format.toUpperCase()}`;
    button.addEventListener("click", () =>
      Plotly.downloadImage(saved(name), {
        format,
        scale: format === "png" ? 3 : 1,
        width: null,
        height: null,
        filename: `coterie-${name}`,
      }),
    );
  }
}

const drawAll = () => charts.forEach(draw);
const idle = window.requestIdleCallback || ((task) => setTimeout(task, 0));
dark.addEventListener("change", drawAll);
narrow.addEventListener("change", drawAll);

function startCharts() {
  charts = [...document.querySelectorAll("[data-figure]")];
  charts.forEach(drawLegend);
  document.querySelectorAll("[data-of]").forEach(offerToSave);
  // Only what is in sight is drawn at once; the rest follows while the reader reads.
  const [now, later] = [[], []];
  for (const chart of charts) (chart.getBoundingClientRect().top < innerHeight ? now : later).push(chart);
  now.forEach(draw);
  const next = () => {
    const chart = later.shift();
    if (chart?.isConnected && !chart.classList.contains("js-plotly-plot")) draw(chart);
    if (later.length) idle(next);
  };
  idle(next);
}

function press(chosen) {
  for (const button of chosen.parentElement.children) {
    button.setAttribute("aria-pressed", String(button === chosen));
  }
}
