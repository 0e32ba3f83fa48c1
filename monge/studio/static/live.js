// Follow a run by server-sent events, and the queue by looking now and then.
import { loadPart, say } from "./parts.js";

function duration(seconds) {
  if (seconds < 60) return `${Math.max(Math.round(seconds), 0)} s`;
  return seconds < 3600 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export function follow(root, enhance) {
  const base = root.dataset.follow;
  const head = root.querySelector("#state");
  let state = head.dataset.state;
  const source = new EventSource(`${base}/events`);
  const by = () => root.querySelector("#by")?.value || "step";

  const curves = throttle(() => {
    const place = root.querySelector("#curves");
    return place && loadPart(place, `${base}/curves?by=${by()}`, {}, enhance);
  }, 900);
  const samples = throttle(async () => {
    const place = root.querySelector("#samples");
    if (!place) return location.reload();
    const asked = new URLSearchParams(new FormData(root.querySelector("#sample-form")));
    asked.set("at", Date.now());
    return loadPart(place, `${base}/samples?${asked}`, {}, enhance);
  }, 4000);

  source.onmessage = async (event) => {
    const told = JSON.parse(event.data);
    if (told.fraction !== undefined && told.fraction !== null) {
      const bar = root.querySelector("#progress");
      if (bar) bar.value = told.fraction;
      const left = root.querySelector("#left");
      if (left && told.left !== null) {
        left.textContent = told.left > 0 ? `about ${duration(told.left)} left` : "evaluating and saving";
      }
    }
    if (told.state && told.state !== state) {
      state = told.state;
      say(`The fit is ${state}.`);
      await loadPart(head, `${base}/state`, {}, enhance);
      if (state === "running") curves();
    }
    if (told.log) curves();
    if (told.checkpoint) samples();
  };
  source.addEventListener("end", () => {
    source.close();
    location.reload();
  });
  window.addEventListener("pagehide", () => source.close());
}

export function throttle(work, pause) {
  let busy = false;
  let again = false;
  const run = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try { await work(); } finally {
      setTimeout(() => { busy = false; if (again) { again = false; run(); } }, pause);
    }
  };
  return run;
}

export function poll(root, enhance) {
  if (!root.dataset.live) return;
  const look = async () => {
    if (document.hidden || root.contains(document.activeElement)) return;
    await loadPart(root, root.dataset.poll, {}, enhance);
    if (!root.querySelector(".running, .queued, .ending")) location.reload();
  };
  if (root.querySelector(".running, .queued, .ending")) setInterval(look, 2000);
}

export function reloadWhile(root) {
  if (!["queued", "running", "ending"].includes(root.dataset.reloadWhile)) return;
  const timer = setInterval(() => {
    const busy = document.querySelector("[aria-busy], details[open]");
    const typing = document.activeElement?.matches("input, select, textarea");
    if (!document.hidden && !busy && !typing) { clearInterval(timer); location.reload(); }
  }, 3000);
}
