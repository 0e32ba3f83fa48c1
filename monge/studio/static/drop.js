// Drop a file on the form; its way is shown while it is sent.

export function enhanceDrop(form) {
  const input = form.querySelector("input[type=file]");
  const bar = form.querySelector("progress");
  const over = (on) => form.classList.toggle("over", on);
  ["dragenter", "dragover"].forEach((name) => form.addEventListener(name, (event) => {
    event.preventDefault();
    over(true);
  }));
  form.addEventListener("dragleave", () => over(false));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    if (!event.dataTransfer.files.length) return;
    input.files = event.dataTransfer.files;
    form.requestSubmit();
  });
  form.addEventListener("submit", () => { bar.hidden = false; bar.removeAttribute("value"); });
}
