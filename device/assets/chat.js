// The chat page of `baton serve`. Conversations stay in this browser. What is sent goes to this server alone, by
// the chat API that programs use.
"use strict";

const $ = (id) => document.getElementById(id);
const STORE = "baton-conversations";
const OPTIONS = "baton-options";
/** Tokens closer than this are one bar of a timeline, in milliseconds. */
const SAME_BAR = 4;

const read = (key, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
};
const options = { key: "", system: "", tokens: 512, temperature: 0, cites: false, ...read(OPTIONS, {}) };
let conversations = read(STORE, []);
let current = null;
let attached = [];
let running = null;
/** The question that is edited: its place, and the text and documents that were in the form before. */
let editing = null;

/** Conversations for which the browser has no room. */
let unkept = [];

const without = (list, gone) => list.filter(({ id }) => !gone.some((one) => one.id === id));
/** All conversations, also those that another window kept meanwhile. */
const all = () => [...unkept, ...without(read(STORE, []), unkept)];

/** Keeps a conversation, or removes it. */
function save(conversation, kept = true) {
  unkept = without(unkept, [conversation]);
  conversations = [...(kept ? [conversation] : []), ...without(all(), [conversation])];
  try {
    localStorage.setItem(STORE, JSON.stringify(conversations));
    unkept = [];
  } catch {
    if (kept) unkept.push(conversation);
    say("This browser has no room for more conversations: export and delete some.");
  }
}
const say = (text) => ($("said").textContent = text);
const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};

/** Asks the server; an answer that is an error is thrown as its message. */
async function ask(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (options.key) headers.authorization = `Bearer ${options.key}`;
  const init = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body), signal };
  const response = await fetch(path, init).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server of this page does not answer. Is `baton serve` running?");
  });
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  const message = said.error?.message ?? said.error ?? `the server answered ${response.status}`;
  throw new Error(response.status === 401 ? `${message} Set the key in the settings.` : message);
}

/** Asks before something that cannot be undone. */
function sure(question, action) {
  const dialog = $("sure");
  $("sure-question").textContent = question;
  $("sure-yes").textContent = action;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue === "yes")));
}

// --- conversations ---

function begin() {
  endEdit();
  // Browsers give randomUUID only to pages of this machine, or of https.
  const id = [...crypto.getRandomValues(new Uint32Array(4))].map((number) => number.toString(16)).join("-");
  current = { id, at: Date.now(), messages: [] };
  attached = [];
  show();
}

const titleOf = (conversation) => conversation.messages[0]?.text.slice(0, 80) || "Empty";

function list() {
  const wanted = $("search").value.toLowerCase();
  const fits = ({ messages }) => messages.some(({ text }) => text.toLowerCase().includes(wanted));
  const rows = conversations.filter((one) => !wanted || fits(one)).map((one) => {
    const title = make("button", { className: "title", textContent: titleOf(one), onclick: () => open(one) });
    const save = make("button", { textContent: "⤓", title: "Export", ariaLabel: `Export ${titleOf(one)}`, onclick: () => exported(one) });
    const gone = make("button", { textContent: "✕", title: "Delete", ariaLabel: `Delete ${titleOf(one)}`, onclick: () => remove(one) });
    const row = make("li", {}, title, save, gone);
    if (one.id === current?.id) row.setAttribute("aria-current", "true");
    return row;
  });
  $("conversations").replaceChildren(...rows);
}

function open(conversation) {
  if (running) return;
  endEdit();
  current = conversation;
  attached = [];
  $("list").classList.remove("shown");
  show();
}

async function remove(conversation) {
  if (running) return say("Stop the answer first.");
  if (!(await sure(`Delete “${titleOf(conversation)}”? It cannot be brought back.`, "Delete"))) return;
  save(conversation, false);
  conversation.id === current?.id ? begin() : list();
}

function exported(conversation) {
  const body = conversation.messages.map(({ role, text, documents = [] }) => {
    const names = documents.map(({ name }) => `\n\nDocument: ${name}`).join("");
    return `## ${role === "user" ? "Question" : "Answer"}${names}\n\n${text}\n`;
  });
  download(`conversation-${new Date(conversation.at).toISOString().slice(0, 10)}.md`, new Blob([body.join("\n")], { type: "text/markdown" }));
}

function download(name, blob) {
  const url = URL.createObjectURL(blob);
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// --- what is shown ---

const ms = (value) => (value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);

function factsOf(message, at) {
  const { source, first, gap, rate, total } = message.facts ?? {};
  const parts = [];
  if (source) {
    const { writer, cloud_tokens: cloud, device_tokens: device } = source;
    parts.push(writer === "relay" ? `cloud ${cloud} tokens, then this device ${device}` : writer === "cloud" ? `cloud, ${cloud} tokens` : `this device, ${device} tokens`);
  }
  if (first !== undefined) parts.push(`first token after ${ms(first)}`, `${rate.toFixed(1)} tokens/s`, `longest gap ${ms(gap)}`, `${ms(total)} in all`);
  const facts = make("div", { className: "facts" }, ...parts.map((text) => make("span", { textContent: text })));
  if (at === current.messages.length - 1) facts.append(make("button", { textContent: "Regenerate", onclick: () => again(at) }));
  const record = message.facts?.record;
  if (record !== undefined) facts.append(make("button", { textContent: "What was sent", onclick: () => tellSent(facts, record) }));
  return facts;
}

/** Turns the ranges of citations, which are bytes, into texts. */
function quoted(citations, messages, answer) {
  const part = (text, [start, end]) => new TextDecoder().decode(new TextEncoder().encode(text).slice(start, end));
  return citations.map(({ answer: range, sources }) => ({
    text: part(answer, range),
    sources: sources.map(({ message, bytes, score }) => ({ text: part(messages[message].content, bytes), score })),
  }));
}

/** The sentences that an answer stands on, below it. */
function evidenceOf({ citations }) {
  const rows = citations.map(({ text, sources }) => make("li", { textContent: text }, make("ul", {}, ...sources.map((source) =>
    make("li", { textContent: `“${source.text}”`, title: `score ${source.score.toFixed(2)}` })))));
  return make("details", { className: "cited" }, make("summary", { textContent: "What this stands on" }), make("ol", {}, ...rows));
}

/** Shows what left this device for an answer, with the placeholders of private values marked; again hides it. */
async function tellSent(facts, record) {
  const shown = facts.parentElement.querySelector(".sent");
  if (shown) return shown.remove();
  const box = make("div", { className: "sent" });
  facts.after(box);
  try {
    const { sent, report } = await (await ask(`answers/${record}`)).json();
    if (report.route) box.append(make("p", { textContent: `Route: ${report.route.chosen}. ${report.route.forecasts.map((way) => `${way.route}: first token after ${ms(way.first_ms)} expected`).join("; ")}.` }));
    box.append(make("button", { textContent: "Signed receipt", title: "Which bytes left, what stayed, who wrote each token; `baton receipt` shows and checks it", onclick: () => saveReceipt(box, record) }));
    if (!sent) return box.append(make("p", { textContent: "Nothing was sent. This device wrote the answer alone." }));
    box.append(make("p", { textContent: `${sent.bytes.toLocaleString("en")} bytes to ${sent.cloud}. What is marked stands for a value that stayed on this device.` }));
    for (const { role, text } of sent.request.segments) {
      const part = make("div", { className: "text" }, make("b", { textContent: `${role}\n` }));
      for (const piece of text.split(/(\[[A-Z]+_\d+\])/)) part.append(/^\[[A-Z]+_\d+\]$/.test(piece) ? make("mark", { textContent: piece }) : piece);
      box.append(part);
    }
  } catch (error) {
    box.append(make("p", { className: "error", textContent: error.message }));
  }
}

/** Saves the signed receipt of an answer as a file, byte for byte as it was signed. */
async function saveReceipt(box, record) {
  try {
    download(`receipt-${record.slice(0, 8)}.json`, await (await ask(`answers/${record}/receipt`)).blob());
  } catch (error) {
    box.append(make("p", { className: "error", textContent: error.message }));
  }
}

/** Draws when tokens came: the wait for the first one, then a bar for each, by who wrote it. */
function timeline({ times, source, total }) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "timeline");
  svg.setAttribute("viewBox", "0 0 1000 22");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "When the tokens of this answer came");
  const bar = (kind, from, width) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    Object.entries({ class: kind, x: from, y: 4, width, height: 14 }).forEach(([name, value]) => rect.setAttribute(name, value));
    svg.append(rect);
  };
  const scale = 1000 / Math.max(total, 1);
  bar("wait", 0, times[0] * scale);
  const byCloud = source ? source.cloud_tokens / Math.max(1, source.cloud_tokens + source.device_tokens) : 0;
  let last = -Infinity;
  times.forEach((time, at) => {
    if ((time - last) * scale < SAME_BAR && at < times.length - 1) return;
    last = time;
    bar(at < byCloud * times.length ? "cloud" : "device", time * scale, 3);
  });
  return svg;
}

function item(message, at) {
  const row = make("li", { className: message.role });
  if (editing?.at === at) row.setAttribute("aria-current", "true");
  if (message.documents?.length) {
    row.append(make("div", { className: "documents", textContent: `With ${message.documents.map(({ name }) => name).join(", ")}` }));
  }
  row.append(make("div", { className: "text", textContent: message.text }));
  for (const note of message.notes ?? []) row.append(make("div", { className: "note", textContent: note }));
  if (message.error) row.append(make("div", { className: "error", textContent: message.error }));
  if (message.role === "assistant") {
    if (message.citations?.length) row.append(evidenceOf(message));
    row.append(factsOf(message, at));
    if (message.facts?.times?.length) row.append(timeline(message.facts));
  } else if (!running) {
    row.append(make("div", { className: "facts" }, make("button", { textContent: "Edit", onclick: () => edit(at) })));
  }
  return row;
}

function show() {
  $("messages").replaceChildren(...current.messages.map(item));
  $("messages").scrollTop = $("messages").scrollHeight;
  $("stop").hidden = !running;
  $("send").disabled = Boolean(running);
  $("send").textContent = editing ? "Ask again" : "Ask";
  $("cancel").hidden = !editing;
  const chips = attached.map((document, at) => {
    const gone = make("button", { type: "button", textContent: "✕", ariaLabel: `Remove ${document.name}` });
    gone.onclick = () => { attached.splice(at, 1); show(); };
    return make("li", {}, `${document.name} (${document.text.length.toLocaleString("en")} characters) `, gone);
  });
  $("attached").replaceChildren(...chips);
  list();
}

// --- asking ---

async function attach(files) {
  for (const file of files) {
    say(`Reading ${file.name}…`);
    try {
      const bytes = new Uint8Array(await file.arrayBuffer());
      let text = "";
      for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
      const response = await ask("document", { name: file.name, media_type: file.type, data: btoa(text) });
      attached.push({ name: file.name, text: (await response.json()).text });
      say("");
    } catch (error) {
      say(`${file.name}: ${error.message}`);
    }
  }
  show();
}

/** The messages as the API takes them: documents stand before the question. */
function sent() {
  const messages = options.system ? [{ role: "system", content: options.system }] : [];
  for (const { role, text, documents = [], error } of current.messages) {
    if (error && !text) continue;
    for (const { name, text } of documents) messages.push({ role: "user", content: `Document ${name}:\n\n${text}` });
    messages.push({ role, content: text });
  }
  return messages;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

async function answer() {
  const message = { role: "assistant", text: "" };
  const body = {
    messages: sent(), stream: true, stream_options: { include_usage: true, include_progress: true },
    max_tokens: Number(options.tokens), temperature: Number(options.temperature), citations: options.cites,
  };
  current.messages.push(message);
  save(current);
  running = new AbortController();
  // What was written so far is kept also if the page is closed or loaded again.
  window.onpagehide = () => {
    message.error = "The page was closed before the end.";
    save(current);
  };
  show();
  const times = [];
  const begun = performance.now();
  const since = () => performance.now() - begun;
  let [source, tokens, record, cited, notes, finish] = [null, 0, undefined, undefined, [], undefined];
  try {
    for await (const event of events(await ask("v1/chat/completions", body, running.signal))) {
      if (event.error) throw new Error(event.error.message);
      if (event.x_progress?.total) {
        const { source, computed, total, eta_ms: eta } = event.x_progress;
        say(`The ${source} has read ${computed} of ${total} tokens${eta ? `, ${ms(eta)} more` : ""}`);
      }
      tokens = event.usage?.completion_tokens ?? tokens;
      const choice = event.choices?.[0];
      source = event.baton?.source ?? choice?.baton?.source ?? source;
      record = event.baton?.record ?? choice?.baton?.record ?? record;
      cited = event.baton?.citations ?? choice?.baton?.citations ?? cited;
      notes = event.baton?.notes ?? choice?.baton?.notes ?? notes;
      finish = choice?.finish_reason ?? finish;
      const text = choice?.delta?.content;
      if (choice?.delta?.reasoning_content) say("The model is thinking");
      if (!text) continue;
      times.push(since());
      message.text += text;
      say("");
      const row = $("messages").lastElementChild.querySelector(".text");
      row.textContent = message.text;
      $("messages").scrollTop = $("messages").scrollHeight;
    }
  } catch (error) {
    // A page that is being closed has said so already.
    message.error ??= error.name === "AbortError" ? "Stopped." : error instanceof TypeError ? "The connection to the server was lost." : error.message;
  }
  const gaps = times.slice(1).map((time, at) => time - times[at]);
  if (times.length) {
    const written = Math.max(tokens, times.length);
    const rate = (written - 1) / Math.max((times.at(-1) - times[0]) / 1000, 1e-3);
    message.facts = { source, record, first: times[0], gap: Math.max(0, ...gaps), rate, total: times.at(-1), times: times.map(Math.round) };
  }
  if (cited) message.citations = quoted(cited, body.messages, message.text);
  message.notes = notes.map((note) => note.message);
  if (finish === "length") message.notes.push(`The answer was cut at ${tokens} tokens. Allow more in the options, or ask it to go on.`);
  running = null;
  window.onpagehide = null;
  say("");
  save(current);
  show();
  about();
}

/** Puts a question into the form. Nothing goes until it is asked again. */
function edit(at) {
  const { text, documents = [] } = current.messages[at];
  editing = { draft: $("question").value, attached, ...editing, at };
  attached = [...documents];
  $("question").value = text;
  show();
  $("question").focus();
}

/** Ends an edit: the form has again what was in it before. */
function endEdit() {
  if (!editing) return;
  $("question").value = editing.draft;
  attached = editing.attached;
  editing = null;
}

function again(at) {
  if (running) return;
  current.messages.length = at;
  answer();
}

async function submit() {
  const text = $("question").value.trim();
  if (!text || running) return;
  const question = { role: "user", text, documents: attached };
  if (editing) {
    const later = current.messages.length - editing.at - 2;
    const gone = later > 0 ? `Its answer and ${later} later ${later === 1 ? "message" : "messages"} go.` : "Its answer goes.";
    if (!(await sure(`Ask this in place of the earlier question? ${gone}`, "Ask again"))) return;
    current.messages.length = editing.at;
    endEdit();
  } else {
    attached = [];
    $("question").value = "";
  }
  current.messages.push(question);
  answer();
}

// --- the model and the settings ---

async function about() {
  try {
    const { models } = await (await ask("api/tags")).json();
    const { models: loaded } = await (await ask("api/ps")).json();
    const [model] = models;
    const size = model?.size ? `, ${(model.size / 1e6).toFixed(0)} MB` : "";
    const where = loaded.length ? "in memory" : "not in memory, the next question loads it";
    $("model").textContent = model ? `${model.details?.family ?? "model"} ${model.details?.parameter_size ?? ""}${size}: ${where}` : "no model on this device";
    const rows = models.map(({ name, size }) => make("li", { textContent: `${name}: ${(size / 1e6).toFixed(1)} MB` }));
    $("models").replaceChildren(...rows);
  } catch (error) {
    $("model").textContent = error.message;
  }
}

async function pull() {
  const [bar, said] = [$("pulled"), $("pull-said")];
  [bar.hidden, bar.value, said.textContent] = [false, 0, "Asking for it…"];
  try {
    const response = await ask("api/pull", { model: $("pull").value.trim(), stream: true });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const { status, completed, total, error } = JSON.parse(line);
        if (error) throw new Error(error);
        if (total) bar.value = (completed ?? 0) / total;
        said.textContent = total ? `${status}: ${((completed ?? 0) / 1e6).toFixed(0)} of ${(total / 1e6).toFixed(0)} MB` : status;
      }
    }
  } catch (error) {
    said.textContent = error.message;
  }
  bar.hidden = true;
}

for (const name of ["key", "system", "tokens", "temperature"]) {
  $(name).value = options[name];
  $(name).onchange = () => {
    options[name] = $(name).value;
    localStorage.setItem(OPTIONS, JSON.stringify(options));
    if (name === "key") about();
  };
}
$("cites").checked = options.cites;
$("cites").onchange = () => {
  options.cites = $("cites").checked;
  localStorage.setItem(OPTIONS, JSON.stringify(options));
};
$("ask").onsubmit = (event) => { event.preventDefault(); submit(); };
$("cancel").onclick = () => { endEdit(); show(); };
$("question").onkeydown = (event) => {
  if (event.key === "Escape" && editing) $("cancel").click();
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
};
$("stop").onclick = () => running?.abort();
$("files").onchange = async () => { await attach($("files").files); $("files").value = ""; };
$("chat").ondragover = (event) => event.preventDefault();
$("chat").ondrop = (event) => { event.preventDefault(); attach(event.dataTransfer.files); };
$("new").onclick = () => { if (!running) begin(); };
$("search").oninput = list;
$("open-list").onclick = () => $("open-list").setAttribute("aria-expanded", $("list").classList.toggle("shown"));
$("open-settings").onclick = () => { $("settings").showModal(); about(); };
$("options").onsubmit = (event) => { event.preventDefault(); $("settings").close(); };
$("settings").onclose = about;
$("start-pull").onclick = pull;
window.onstorage = ({ key }) => {
  if (key !== STORE) return;
  conversations = all();
  list();
};
begin();
about();
