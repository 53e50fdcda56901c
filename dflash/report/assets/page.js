"use strict";
// Draws every chart of the page from the JSON beside it, in the theme the reader's system asks for; light and narrower while printing.
(() => {
  const CONFIG = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["sendChartToCloud"] };
  const PRINT_WIDTH_PIXELS = 680;
  const themes = JSON.parse(document.getElementById("chart-themes").textContent);
  const darkMode = matchMedia("(prefers-color-scheme: dark)");
  const charts = [...document.querySelectorAll("[data-chart]")].map((place) => ({
    place,
    figure: JSON.parse(document.getElementById(place.dataset.chart).textContent),
  }));

  function draw(theme, width) {
    for (const { place, figure } of charts) {
      const layout = { ...figure.layout, template: themes[theme], autosize: width === undefined, width };
      Plotly.react(place, figure.data, layout, CONFIG);
    }
  }

  const current = () => (darkMode.matches ? "dark" : "light");
  draw(current());
  darkMode.addEventListener("change", () => draw(current()));
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((details) => { details.open = true; });
    draw("light", PRINT_WIDTH_PIXELS);
  });
  addEventListener("afterprint", () => draw(current()));
})();
