// The chat page: what is shown, and what keys and buttons do.
import { ask, events } from "./answers.js";
import { Conversation, checked, store } from "./conversations.js";
import { GrowingMarkdown, rendered } from "./markdown.js";

const at = (id) => document.getElementById(id);
const fields = { system: "", temperature: "0.7", "top-p": "1", "max-tokens": "1024", schema: "", model: "", probabilities: false };
let current = new Conversation();
let running = null; // the AbortController of the answer that is being written

function make(name, content = [], properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...content);
  return made;
}

function button(text, act, label = text) {
  const made = make("button", [text], { type: "button" });
  made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

function report(text) {
  at("problem").textContent = text;
  at("problem").hidden = !text;
}

function keep() {
  try { store.save(current); } catch { report("The browser has no room for the conversation: export and delete some."); }
  listConversations();
}

// ---- the list of conversations ----

function listConversations() {
  at("conversations").replaceChildren(...store.all().map((each) => {
    const open = button(each.title, () => show(each));
    open.setAttribute("aria-current", String(each.id === current.id));
    const remove = button("✕", () => {
      store.remove(each);
      if (each.id === current.id) show(new Conversation()); else listConversations();
    }, `Delete ${each.title}`);
    return make("li", [open, remove]);
  }));
}

function show(conversation) {
  running?.abort();
  current = conversation;
  report("");
  closeSide();
  listConversations();
  render();
  at("message").focus();
}

function download() {
  const data = new Blob([JSON.stringify({ conversations: store.all() }, null, 1)], { type: "application/json" });
  const link = make("a", [], { href: URL.createObjectURL(data), download: "lbrx-conversations.json" });
  link.click();
  URL.revokeObjectURL(link.href);
}

async function upload(file) {
  try {
    const value = JSON.parse(await file.text());
    const made = (Array.isArray(value.conversations) ? value.conversations : [value]).map(checked);
    made.forEach((each) => store.save(each));
    show(made[0] ?? current);
  } catch (problem) {
    report(`${file.name} cannot be imported. ${problem.message}`);
  }
}

// ---- messages ----

function render() {
  at("title").textContent = current.title;
  at("log").replaceChildren(...current.path().map(article));
  at("log").scrollTop = at("log").scrollHeight;
}

function article(message) {
  const mine = message.role === "user";
  const name = mine ? "You" : "Model";
  const body = make("div", [], { className: "body" });
  if (mine) body.textContent = message.text; else body.append(...rendered(message.text));
  const made = make("article", [make("p", [name], { className: "who" })], { className: message.role });
  made.setAttribute("aria-label", name);
  if (message.reasoning) made.append(thought(message.reasoning).box);
  made.append(body, foot(message));
  if (message.tokens) made.append(tokens(message.tokens));
  return made;
}

function thought(text, open = false) {
  const place = make("p", [text]);
  return { place, box: make("details", [make("summary", ["Reasoning"]), place], { className: "thought", open }) };
}

function foot(message) {
  const made = make("div", [], { className: "foot" });
  const { index, count } = current.place(message.id);
  if (count > 1) {
    const turn = (by) => () => { current.turn(message.id, by); keep(); render(); };
    made.append(button("‹", turn(-1), "Earlier version"), `${index + 1} of ${count}`, button("›", turn(1), "Later version"));
  }
  if (message.role === "user") made.append(button("Edit", () => edit(message)));
  else made.append(button("Again", () => answer(current.nodes[message.id].parent), "Answer again"));
  made.append(button("Copy", () => navigator.clipboard.writeText(message.text), "Copy the message"));
  if (message.speed) made.append(message.speed);
  return made;
}

// Each token, marked by how probable it was; its title lists the alternatives.
function tokens(list) {
  const shown = list.map(([text, score, others]) => {
    const kind = score < Math.log(0.2) ? "p0" : score < Math.log(0.6) ? "p1" : "p2";
    const title = others.map(([other, value]) => `${JSON.stringify(other)} ${(100 * Math.exp(value)).toFixed(1)} %`).join("\n");
    return make("span", [text], { className: kind, title });
  });
  return make("details", [make("summary", ["Probabilities of tokens"]), make("p", shown, { className: "tokens" })]);
}

function edit(message) {
  const place = [...at("log").children][current.path().findIndex((each) => each.id === message.id)];
  const field = make("textarea", [], { className: "edit", value: message.text });
  field.setAttribute("aria-label", "Edit the message");
  const save = () => {
    if (field.value.trim()) answer(current.add(current.nodes[message.id].parent, "user", field.value));
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); save(); }
    if (event.key === "Escape") { event.stopPropagation(); render(); at("message").focus(); }
  });
  const buttons = make("div", [button("Send", save), button("Cancel", render)], { className: "foot" });
  place.replaceChildren(field, buttons);
  field.focus();
}

// ---- answers ----

function request(messages) {
  const settings = readSettings();
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body = {
    model: settings.model || undefined, messages: [...system, ...messages], stream: true, stream_options: { include_usage: true },
    temperature: Number(settings.temperature), top_p: Number(settings["top-p"]), max_tokens: Number(settings["max-tokens"]),
  };
  if (settings.schema.trim()) {
    const schema = JSON.parse(settings.schema);
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

async function answer(parent) {
  if (running) return;
  report("");
  let body;
  try { body = request(current.messagesTo(parent)); } catch { report("The schema in the settings is not JSON."); return; }
  const conversation = current;
  const id = conversation.add(parent, "assistant", "");
  const node = conversation.nodes[id];
  keep();
  render();
  const stopping = new AbortController();
  setRunning(stopping);
  const place = at("log").lastElementChild;
  try {
    await write(node, place, await ask("/v1/chat/completions", body, stopping.signal));
    at("status").textContent = `The answer is complete. ${await memory()}`;
  } catch (problem) {
    if (problem.name === "AbortError") at("status").textContent = "Stopped.";
    else report(problem.message || String(problem));
  }
  setRunning(null);
  try { store.save(conversation); } catch { report("The browser has no room for the conversation."); }
  if (current === conversation) { listConversations(); render(); }
}

async function write(node, place, response) {
  const began = performance.now();
  const shown = new GrowingMarkdown(place.querySelector(".body"));
  let first = 0, drawing = false, reasoning = null;
  const draw = () => {
    drawing = false;
    if (!place.isConnected) return;
    const log = at("log");
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    if (node.reasoning && !reasoning) { reasoning = thought("", true); shown.place.before(reasoning.box); }
    if (reasoning) reasoning.place.textContent = node.reasoning;
    shown.show(node.text);
    if (follows) log.scrollTop = log.scrollHeight;
  };
  at("status").textContent = "The model is answering.";
  for await (const event of events(response)) {
    const [choice] = event.choices;
    if (choice) {
      first ||= performance.now();
      node.text += choice.delta.content ?? "";
      if (choice.delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + choice.delta.reasoning_content;
      for (const each of choice.logprobs?.content ?? []) {
        (node.tokens ??= []).push([each.token, each.logprob, each.top_logprobs.map((other) => [other.token, other.logprob])]);
      }
      if (!drawing) { drawing = true; requestAnimationFrame(draw); }
    }
    if (event.usage) {
      const made = event.usage.completion_tokens, seconds = (performance.now() - first) / 1000;
      const speed = made > 1 && seconds > 0 ? `, ${((made - 1) / seconds).toFixed(1)} tokens a second` : "";
      node.speed = `${made} tokens${speed}, the first after ${((first - began) / 1000).toFixed(2)} s`;
    }
  }
}

// What the server uses, from its metrics.
async function memory() {
  try {
    const text = await (await ask("/metrics")).text();
    const bytes = Number(/^lbrx_process_peak_memory_bytes (\d+)/m.exec(text)[1]);
    return `The server has used ${(bytes / 2 ** 20).toFixed(0)} MiB of memory at most.`;
  } catch { return ""; }
}

function setRunning(stopping) {
  running = stopping;
  at("stop").hidden = !stopping;
  at("send").hidden = Boolean(stopping);
}

function send() {
  const field = at("message");
  if (!field.value.trim() || running) return;
  const id = current.add(current.last(), "user", field.value);
  field.value = "";
  fit();
  answer(id);
}

function fit() {
  const field = at("message");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

// ---- settings ----

function readSettings() {
  return Object.fromEntries(Object.entries(fields).map(([name, usual]) => {
    const field = at(name);
    return [name, typeof usual === "boolean" ? field.checked : field.value];
  }));
}

function restoreSettings() {
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem("lbrx.settings")) ?? {}; } catch { /* of another version */ }
  for (const [name, usual] of Object.entries(fields)) {
    const value = typeof kept[name] === typeof usual ? kept[name] : usual;
    if (name === "model" && ![...at("model").options].some((each) => each.value === value)) continue;
    if (typeof usual === "boolean") at(name).checked = value; else at(name).value = value;
  }
  at("key").value = sessionStorage.getItem("lbrx.key") ?? "";
}

async function listModels() {
  try {
    const { data } = await (await ask("/v1/models")).json();
    const before = at("model").value;
    at("model").replaceChildren(...data.map(({ id }) => make("option", [id], { value: id })));
    if (data.some(({ id }) => id === before)) at("model").value = before;
    at("model-name").textContent = at("model").value;
  } catch (problem) {
    report(problem.message);
  }
}

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  at("theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("lbrx.theme", theme);
}

function closeSide() {
  at("side").classList.remove("open");
  at("menu").setAttribute("aria-expanded", "false");
}

// ---- events ----

at("compose").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("message").addEventListener("input", fit);
at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  if (event.key === "ArrowUp" && !at("message").value) {
    const mine = current.path().filter((each) => each.role === "user").at(-1);
    if (mine) { event.preventDefault(); edit(mine); }
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !at("settings").open) { running?.abort(); closeSide(); }
  if (event.altKey && event.code === "KeyN") { event.preventDefault(); show(new Conversation()); }
});
at("stop").addEventListener("click", () => { running?.abort(); at("message").focus(); });
at("new").addEventListener("click", () => show(new Conversation()));
at("export").addEventListener("click", download);
at("import").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", () => { const [file] = at("file").files; at("file").value = ""; if (file) upload(file); });
at("menu").addEventListener("click", () => at("menu").setAttribute("aria-expanded", String(at("side").classList.toggle("open"))));
at("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(localStorage.getItem("lbrx.theme") ?? "auto") + 1) % 3]));
at("open-settings").addEventListener("click", () => at("settings").showModal());
at("settings").addEventListener("close", () => {
  sessionStorage.setItem("lbrx.key", at("key").value);
  localStorage.setItem("lbrx.settings", JSON.stringify(readSettings()));
  listModels();
});

setTheme(THEMES.find((each) => each === localStorage.getItem("lbrx.theme")) ?? "auto");
restoreSettings();
listConversations();
render();
await listModels();
restoreSettings();
at("model-name").textContent = at("model").value;
