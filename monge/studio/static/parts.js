// Forms and places whose answers are fetched and put into the page, drawn by the server.

const HEADERS = { "x-fragment": "1" };

export function say(text) {
  const place = document.querySelector("#said");
  if (place) place.textContent = text;
}

const turns = new WeakMap();

// Fetch a part of a page into a place; of several that overlap, the last counts.
export async function loadPart(place, address, options, enhance) {
  const turn = (turns.get(place) || 0) + 1;
  turns.set(place, turn);
  place.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(address, { headers: HEADERS, ...options });
    const text = await answer.text();
    if (turns.get(place) !== turn) return false;
    const part = new DOMParser().parseFromString(text, "text/html");
    const same = place.id ? part.getElementById(place.id) : null;
    place.replaceChildren(...(same ? same.childNodes : part.body.childNodes));
    if (enhance) enhance(place);
    await Promise.all([...place.querySelectorAll("img")].map(arrived));
    return answer.ok;
  } catch {
    if (turns.get(place) !== turn) return false;
    const sentence = document.createElement("p");
    sentence.className = "problem";
    sentence.textContent = "The studio does not answer; start it again with `monge studio`.";
    place.replaceChildren(sentence);
    return false;
  } finally {
    if (turns.get(place) === turn) place.removeAttribute("aria-busy");
  }
}

// A picture that cannot be drawn is asked for once more, for the sentence about it.
function arrived(image) {
  return new Promise((done) => {
    if (image.complete && image.naturalWidth) return done();
    image.addEventListener("load", done, { once: true });
    image.addEventListener("error", async () => {
      try {
        const answer = await fetch(image.src, { headers: HEADERS });
        const part = new DOMParser().parseFromString(await answer.text(), "text/html");
        const sentence = document.createElement("p");
        sentence.className = "problem";
        sentence.textContent = part.querySelector(".problem")?.textContent || "No picture came.";
        image.replaceWith(sentence);
      } catch { /* the alternative text stays */ }
      done();
    }, { once: true });
  });
}

function fields(form, button) {
  const found = new FormData(form);
  if (button?.name) found.set(button.name, button.value);
  return found;
}

export function enhanceForms(root, enhance) {
  root.querySelectorAll("form").forEach((form) => {
    if (form.dataset.ready) return;
    form.dataset.ready = "1";
    form.addEventListener("submit", (event) => submit(event, form, enhance));
    if (form.dataset.auto) watch(form);
  });
}

async function submit(event, form, enhance) {
  const button = event.submitter;
  const target = button?.dataset.swap || (button?.getAttribute("formaction") && !button.dataset.bare
    ? null : form.dataset.swap);
  if (!target || button?.dataset.plain || button?.dataset.reload) return;
  const place = document.querySelector(target);
  if (!place) return;
  event.preventDefault();
  if (button?.dataset.more) {
    const input = form.elements[button.dataset.more];
    const own = input instanceof RadioNodeList ? input[0] : input;
    own.value = String(Number(own.value || 0) + 1);
  }
  const action = button?.getAttribute("formaction") || form.getAttribute("action");
  const method = (button?.getAttribute("formmethod") || button?.dataset.swap && "post"
    || form.getAttribute("method") || "get").toLowerCase();
  const sent = fields(form, button?.dataset.more ? null : button);
  if (button?.dataset.bare) sent.delete("rows");
  let address = action;
  const options = {};
  if (method === "post") {
    options.method = "POST";
    options.body = new URLSearchParams([...sent].filter(([, value]) => typeof value === "string"));
  } else {
    address = `${action}?${new URLSearchParams(sent)}`;
  }
  const good = await loadPart(place, address, options, enhance);
  say(good ? "The answer is here." : "That did not work; the sentence is on the page.");
}

// A link whose answer is put into the page, if its place is there.
export function enhanceLinks(root, enhance) {
  root.querySelectorAll("a[data-into]").forEach((link) => link.addEventListener("click", async (event) => {
    const place = document.querySelector(link.dataset.into);
    if (!place || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    await loadPart(place, link.href, {}, enhance);
    place.scrollIntoView({ block: "nearest" });
    say("The answer is here.");
  }));
}

// A form that starts from a row starts anew when another row is chosen.
export function enhanceRows(root) {
  root.querySelectorAll("button[data-reload]").forEach((button) => {
    const row = button.form.elements.row;
    button.hidden = true;
    row.addEventListener("change", () => button.form.requestSubmit(button));
  });
}

// Forms that answer as they are changed.
function watch(form) {
  let waiting;
  const go = () => form.requestSubmit();
  form.querySelectorAll("button:not([name])").forEach((button) => {
    if (button.classList.contains("small")) button.hidden = true;
  });
  form.addEventListener("input", (event) => {
    const shown = event.target.parentElement?.querySelector("output");
    if (shown) shown.textContent = Number(event.target.value).toFixed(2);
    if (event.target.type === "range" || event.target.tagName === "SELECT") {
      clearTimeout(waiting);
      waiting = setTimeout(go, 120);
    }
  });
}
