// What moves in the pages: parts that are fetched, runs that are followed, and the tools.
import { enhanceCharts } from "./charts.js";
import { enhanceBrush } from "./brush.js";
import { enhanceMap } from "./map.js";
import { enhanceFilm } from "./film.js";
import { enhanceDrop } from "./drop.js";
import { follow, poll, reloadWhile } from "./live.js";
import { loadPart, enhanceForms, enhanceLinks, enhanceRows } from "./parts.js";

export function enhance(root) {
  enhanceForms(root, enhance);
  enhanceLinks(root, enhance);
  enhanceRows(root);
  enhanceCharts(root);
  root.querySelectorAll("[data-brush]").forEach(enhanceBrush);
  root.querySelectorAll("[data-map]").forEach(enhanceMap);
  root.querySelectorAll("[data-film]").forEach(enhanceFilm);
  root.querySelectorAll(".drop").forEach(enhanceDrop);
  root.querySelectorAll("[data-load]").forEach((place) => {
    const address = place.dataset.load;
    delete place.dataset.load;
    loadPart(place, address, {}, enhance);
  });
}

enhance(document);
document.querySelectorAll("[data-follow]").forEach((root) => follow(root, enhance));
document.querySelectorAll("[data-poll]").forEach((root) => poll(root, enhance));
document.querySelectorAll("[data-reload-while]").forEach(reloadWhile);
document.querySelector("#problem")?.focus();
