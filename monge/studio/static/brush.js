// A mask that is painted over a picture: by pointer or touch, or with arrow keys and space.

export function enhanceBrush(box) {
  const height = Number(box.dataset.height);
  const width = Number(box.dataset.width);
  const form = box.closest("form");
  const field = form.elements.mask;
  const image = box.querySelector("img");
  const acts = form.querySelector(".brush-acts");
  const erase = form.querySelector("[data-erase]");
  const mask = read(field.value, height * width);
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `brush over a picture of ${width} by ${height} pixels`);
  canvas.setAttribute("aria-describedby", "brush-help");
  box.append(canvas);
  acts.hidden = false;
  const pen = canvas.getContext("2d");
  const radius = Math.max(0, Math.round(Math.max(width, height) / 24));
  let cursor = [width >> 1, height >> 1];
  let painting = false;
  let keyed = false;

  const draw = () => {
    const picture = pen.createImageData(width, height);
    mask.forEach((on, place) => {
      if (on) picture.data.set([222, 120, 40, 225], 4 * place);
    });
    if (keyed) {
      const place = 4 * (cursor[1] * width + cursor[0]);
      picture.data.set([60, 160, 255, 255], place);
    }
    pen.putImageData(picture, 0, 0);
    field.value = mask.some(Boolean) ? write(mask) : "";
  };
  const paint = (x, y) => {
    const on = erase.getAttribute("aria-pressed") !== "true";
    for (let dy = -radius; dy <= radius; dy += 1) {
      for (let dx = -radius; dx <= radius; dx += 1) {
        const [a, b] = [x + dx, y + dy];
        if (a >= 0 && b >= 0 && a < width && b < height) mask[b * width + a] = on;
      }
    }
    draw();
  };
  const at = (event) => {
    const place = canvas.getBoundingClientRect();
    return [
      Math.floor(((event.clientX - place.left) / place.width) * width),
      Math.floor(((event.clientY - place.top) / place.height) * height),
    ];
  };
  canvas.addEventListener("pointerdown", (event) => {
    painting = true;
    canvas.setPointerCapture(event.pointerId);
    paint(...at(event));
  });
  canvas.addEventListener("pointermove", (event) => painting && paint(...at(event)));
  canvas.addEventListener("pointerup", () => { painting = false; });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    keyed = true;
    if (moves[event.key]) {
      cursor = [
        Math.min(Math.max(cursor[0] + moves[event.key][0], 0), width - 1),
        Math.min(Math.max(cursor[1] + moves[event.key][1], 0), height - 1),
      ];
      if (event.shiftKey) paint(...cursor);
    } else if (event.key === " ") paint(...cursor);
    else if (event.key === "Delete" || event.key === "Backspace") mask.fill(false);
    else return;
    event.preventDefault();
    draw();
  });
  canvas.addEventListener("blur", () => { keyed = false; draw(); });
  form.querySelector("[data-clear]").addEventListener("click", () => { mask.fill(false); draw(); });
  erase.addEventListener("click", () => {
    erase.setAttribute("aria-pressed", String(erase.getAttribute("aria-pressed") !== "true"));
  });
  form.elements.part.addEventListener("change", () => { mask.fill(false); draw(); });
  form.elements.row.addEventListener("change", () => {
    const address = new URL(image.src);
    address.searchParams.set("row", form.elements.row.value || "1");
    image.src = address;
    image.alt = `test row ${form.elements.row.value}, to be painted over`;
  });
  draw();
}

export function write(mask) {
  let text = "";
  for (let place = 0; place < mask.length; place += 4) {
    let digit = 0;
    for (let bit = 0; bit < 4; bit += 1) digit = digit * 2 + (mask[place + bit] ? 1 : 0);
    text += digit.toString(16);
  }
  return text;
}

export function read(text, size) {
  const mask = new Array(size).fill(false);
  [...text].forEach((digit, place) => {
    const value = parseInt(digit, 16);
    for (let bit = 0; bit < 4; bit += 1) {
      if (4 * place + bit < size) mask[4 * place + bit] = Boolean((value >> (3 - bit)) & 1);
    }
  });
  return mask;
}
