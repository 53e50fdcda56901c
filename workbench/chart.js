// One plotly chart. plotly.js itself comes once a page, from one shared model (`library`), and is kept on the page; a chart's own messages
// hold its traces and nothing else. The theme is JupyterLab's, VS Code's or the system's, followed while the page is open.

const KEPT = "__dflash_plotly__";

async function libraryOf(model) {
  const name = model.get("library").slice("IPY_MODEL_".length);
  return model.widget_manager.get_model(name);
}

async function plotlyOf(library) {
  globalThis[KEPT] ??= (async () => {
    const wrapped = `const module = {exports: {}}; const exports = module.exports; const define = undefined;
${library.get("code")}
export default module.exports;`;
    const address = URL.createObjectURL(new Blob([wrapped], { type: "text/javascript" }));
    try {
      const loaded = await import(address);
      return loaded.default.newPlot ? loaded.default : globalThis.Plotly;
    } finally {
      URL.revokeObjectURL(address);
    }
  })();
  try {
    return await globalThis[KEPT];
  } catch (error) {
    delete globalThis[KEPT]; // the next chart may try again
    throw error;
  }
}

function isDark() {
  const body = document.body;
  if (body.dataset.jpThemeLight !== undefined) return body.dataset.jpThemeLight === "false";
  if (body.dataset.vscodeThemeKind !== undefined) return body.dataset.vscodeThemeKind.includes("dark");
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

// Ordered colours are told apart by lightness, so that a dark page needs the other end of the ramp: the kernel sends both.
function dressed(figure, templates) {
  const dark = isDark();
  const layout = { ...figure.layout, template: templates[dark ? "dark" : "light"], autosize: true };
  const data = figure.data.map((trace) => (dark && trace.meta?.dark ? merged(trace, trace.meta.dark) : trace));
  return { data, layout };
}

function merged(base, over) {
  const out = { ...base };
  for (const [key, value] of Object.entries(over))
    out[key] = value && typeof value === "object" && !Array.isArray(value) ? merged(base[key] ?? {}, value) : value;
  return out;
}

async function render({ model, el }) {
  el.classList.add("dflash-chart");
  el.dataset.name = model.get("name");
  const place = document.createElement("div");
  el.append(place);
  const holdHeight = () => (place.style.minHeight = `${model.get("figure").layout?.height ?? 300}px`);
  holdHeight();
  const library = await libraryOf(model);
  let Plotly;
  try {
    Plotly = await plotlyOf(library);
  } catch (error) {
    place.textContent = `This chart can't be drawn: plotly did not load (${error.message}). Reload the page.`;
    return;
  }
  // Drawings follow each other; figures that come while one is under way are drawn once, the newest, when it is done.
  let drawing = Promise.resolve();
  let waiting = false;
  let gone = false;
  const drawNewest = async () => {
    waiting = false;
    if (gone) return;
    holdHeight();
    const { data, layout } = dressed(model.get("figure"), library.get("templates"));
    const config = { displaylogo: false, responsive: true, ...model.get("config") };
    await Plotly.react(place, data, layout, config);
    el.dataset.drawn = String(Number(el.dataset.drawn ?? 0) + 1);
  };
  const draw = () => {
    if (!waiting) drawing = drawing.then(drawNewest).catch((error) => console.error("dflash chart", error));
    waiting = true;
    return drawing;
  };
  model.on("change:figure", draw); // before the first drawing: a figure that comes during it is not missed
  await draw();
  place.on("plotly_relayout", (changes) => {
    const told = Object.fromEntries(Object.entries(changes).filter(([, value]) => ["number", "boolean", "string"].includes(typeof value) || Array.isArray(value)));
    if (!("autosize" in told)) model.send({ kind: "relayout", changes: told });
  });
  const watcher = new MutationObserver(draw);
  watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", draw);
  const sized = new ResizeObserver(() => !gone && place.offsetParent !== null && Plotly.Plots.resize(place));
  sized.observe(el);
  return () => {
    gone = true;
    model.off("change:figure", draw);
    watcher.disconnect();
    sized.disconnect();
    media.removeEventListener("change", draw);
    Plotly.purge(place);
  };
}

export default { render };
