// Values under the pointer; the table below a chart has them for everyone.
const SPACE = "http://www.w3.org/2000/svg";

export function enhanceCharts(root) {
  root.querySelectorAll("svg.curves[data-chart]").forEach((chart) => {
    const { lines } = JSON.parse(chart.dataset.chart);
    chart.removeAttribute("data-chart");
    const layer = document.createElementNS(SPACE, "g");
    layer.setAttribute("aria-hidden", "true");
    chart.append(layer);
    const places = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))]
      .sort((a, b) => a - b);
    chart.addEventListener("pointermove", (event) => {
      const point = new DOMPoint(event.clientX, event.clientY)
        .matrixTransform(chart.getScreenCTM().inverse());
      show(layer, lines, nearest(places, point.x));
    });
    chart.addEventListener("pointerleave", () => layer.replaceChildren());
  });
}

function nearest(places, x) {
  return places.reduce((best, place) => (Math.abs(place - x) < Math.abs(best - x) ? place : best),
    places[0]);
}

function show(layer, lines, x) {
  const parts = [element("line", { class: "cursor", x1: x, x2: x, y1: 10, y2: 228 })];
  const found = lines.map((line) => [line, line.points.find((p) => p[0] === x)])
    .filter(([, point]) => point);
  found.forEach(([line, point], place) => {
    parts.push(element("circle", { class: `dot s${line.colour}`, cx: point[0], cy: point[1], r: 4 }));
    const left = x > 420;
    const text = element("text", {
      class: "tip", x: x + (left ? -8 : 8), y: 24 + 17 * place, "text-anchor": left ? "end" : "start",
    });
    text.textContent = `${lines.length > 1 ? `${line.name} ` : ""}${point[3]} at ${point[2]}`;
    parts.push(text);
  });
  layer.replaceChildren(...parts);
}

export function element(name, attributes) {
  const made = document.createElementNS(SPACE, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}
