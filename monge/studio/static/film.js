// A film: frames that the server draws, one after another.

export function enhanceFilm(figure) {
  const image = figure.querySelector("img");
  const slider = figure.querySelector("input");
  const button = figure.querySelector("[data-play]");
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let timer = null;
  const address = (frame) => `${figure.dataset.film}&frame=${frame}`;
  const show = (frame) => { image.src = address(frame); };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  };
  slider.addEventListener("input", () => { stop(); show(slider.value); });
  button.addEventListener("click", () => {
    if (timer) { stop(); return; }
    if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
    button.textContent = "Pause";
    timer = setInterval(() => {
      if (!image.complete) return;
      if (Number(slider.value) >= Number(slider.max)) { stop(); return; }
      slider.value = Number(slider.value) + 1;
      show(slider.value);
    }, still ? 1000 : 120);
  });
}
