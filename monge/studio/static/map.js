// A map of codes: a click, or the arrow keys, choose a place, which is decoded.
import { element } from "./charts.js";

export function enhanceMap(box) {
  const chart = box.querySelector("svg[data-chart]");
  if (!chart) return;
  const { box: frame, ends, click } = JSON.parse(chart.dataset.chart);
  const form = document.querySelector(box.dataset.form);
  if (!click || !form) return;
  const [left, top, right, bottom] = frame;
  const place = element("circle", { class: "place", r: 7, "aria-hidden": "true" });
  chart.append(place);
  box.tabIndex = 0;
  box.setAttribute("role", "application");
  box.setAttribute("aria-label", "map of codes; arrow keys move, enter decodes");
  const toX = (a) => left + ((a - ends.x[0]) / (ends.x[1] - ends.x[0])) * (right - left);
  const toY = (b) => bottom - ((b - ends.y[0]) / (ends.y[1] - ends.y[0])) * (bottom - top);
  const put = () => {
    place.setAttribute("cx", toX(Number(form.elements.a.value)));
    place.setAttribute("cy", toY(Number(form.elements.b.value)));
  };
  const choose = (a, b) => {
    form.elements.a.value = a.toFixed(3);
    form.elements.b.value = b.toFixed(3);
    put();
    form.requestSubmit();
  };
  chart.addEventListener("click", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(chart.getScreenCTM().inverse());
    choose(
      ends.x[0] + ((point.x - left) / (right - left)) * (ends.x[1] - ends.x[0]),
      ends.y[0] + ((bottom - point.y) / (bottom - top)) * (ends.y[1] - ends.y[0]),
    );
  });
  box.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const move = moves[event.key];
    if (!move) { if (event.key === "Enter") form.requestSubmit(); return; }
    event.preventDefault();
    choose(
      Number(form.elements.a.value) + (move[0] * (ends.x[1] - ends.x[0])) / 24,
      Number(form.elements.b.value) + (move[1] * (ends.y[1] - ends.y[0])) / 24,
    );
  });
  form.addEventListener("input", put);
  put();
}
