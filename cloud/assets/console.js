// The console without this file does everything; with it, figures move by themselves.
// It draws nothing: it asks the server for the same pieces of the page again.

document.documentElement.classList.add("scripted");

/** The element `id` of a page that the server sent. */
const piece = (html, id) => new DOMParser().parseFromString(html, "text/html").getElementById(id);

/** Puts a newer piece in the place of the one shown; opened tables stay open, and the focus stays where it was. */
function replace(id, fresh) {
  const shown = document.getElementById(id);
  if (!shown || !fresh) return;
  const open = [...shown.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key);
  const focus = shown.contains(document.activeElement) && document.activeElement.closest("[data-key]");
  const key = focus && focus.dataset.key;
  shown.replaceChildren(...fresh.childNodes);
  for (const one of shown.querySelectorAll("details[data-key]")) {
    one.open = open.includes(one.dataset.key);
    if (one.dataset.key === key) one.querySelector("summary").focus();
  }
  if (key) shown.querySelector(`button[data-key="${CSS.escape(key)}"]`)?.focus();
}

/** The overview: the same page again, every few seconds, while somebody looks. */
function follow(live) {
  const seconds = Number(live.dataset.refresh);
  const state = document.getElementById("live-state");
  setInterval(async () => {
    if (document.hidden) return;
    try {
      const reply = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (!reply.ok) throw new Error(String(reply.status));
      replace("live", piece(await reply.text(), "live"));
      state.textContent = `Live, every ${seconds} s.`;
    } catch {
      state.textContent = "Not live: the service does not answer. These are the last figures.";
    }
  }, seconds * 1000);
}

/** The form of a scene: predictions move while r, L and the rest are edited. */
function predict(form) {
  const summary = document.getElementById("summary");
  let timer;
  let asked;
  const ask = async () => {
    asked?.abort();
    asked = new AbortController();
    try {
      const reply = await fetch(form.dataset.preview, {
        method: "POST",
        headers: { "x-fragment": "prediction" },
        body: new URLSearchParams(new FormData(form)),
        signal: asked.signal,
        redirect: "error",
      });
      const fresh = piece(await reply.text(), "prediction");
      if (!fresh) throw new Error(String(reply.status));
      replace("prediction", fresh);
      // Only what moved is said aloud.
      if (summary.textContent !== fresh.dataset.summary) summary.textContent = fresh.dataset.summary;
      summary.classList.remove("stale");
    } catch (error) {
      if (error.name !== "AbortError") summary.textContent = "No prediction: the service does not answer.";
    }
  };
  const soon = () => {
    summary.classList.add("stale");
    clearTimeout(timer);
    timer = setTimeout(ask, 150);
  };
  form.addEventListener("input", (event) => {
    // Whoever types a number means it.
    const manual = event.target.dataset.manual && document.getElementById(event.target.dataset.manual);
    if (manual) manual.checked = true;
    form.dataset.changed = "yes";
    soon();
  });
  form.addEventListener("submit", () => delete form.dataset.changed);
  addEventListener("beforeunload", (event) => {
    if (form.dataset.changed) event.preventDefault();
  });
}

/** What cannot be taken back is asked here; without a script the server asks on a page of its own. */
function confirmed(form, dialog) {
  form.addEventListener("submit", (event) => {
    if (form.elements.confirmed) return;
    event.preventDefault();
    dialog.querySelector("p").textContent = form.dataset.confirm;
    dialog.querySelector(".danger").textContent = form.querySelector("button").textContent;
    dialog.showModal();
    dialog.onclose = () => {
      if (dialog.returnValue !== "yes") return;
      const field = document.createElement("input");
      Object.assign(field, { type: "hidden", name: "confirmed", value: "yes" });
      form.append(field);
      form.submit();
    };
  });
}

const live = document.getElementById("live");
if (live) follow(live);
const form = document.getElementById("scene-form");
if (form) predict(form);
const dialog = document.getElementById("confirm");
if (dialog) document.querySelectorAll("form[data-confirm]").forEach((one) => confirmed(one, dialog));
for (const time of document.querySelectorAll("time[datetime]")) {
  time.title = new Date(time.dateTime).toLocaleString();
}
