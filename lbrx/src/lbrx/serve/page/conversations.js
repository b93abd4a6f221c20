// Conversations are trees: editing a message or asking for another answer begins a branch beside it.
// They are kept in the browser alone.
const PREFIX = "lbrx.conversation.";
const ROLES = ["user", "assistant"];
const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map((each) => each.toString(16).padStart(2, "0")).join("");

export class Conversation {
  constructor(title = "New conversation") {
    this.id = newId();
    this.title = title;
    this.changed = Date.now();
    this.nodes = { root: { role: "root", children: [], chosen: 0 } };
  }

  // The messages of the chosen branch.
  path() {
    const found = [];
    let id = "root";
    for (;;) {
      const node = this.nodes[id];
      if (!node.children.length) return found;
      id = node.children[node.chosen];
      found.push({ id, ...this.nodes[id] });
    }
  }

  last() {
    return this.path().at(-1)?.id ?? "root";
  }

  add(parent, role, text) {
    const id = newId();
    this.nodes[id] = { role, text, parent, children: [], chosen: 0 };
    const siblings = this.nodes[parent].children;
    siblings.push(id);
    this.nodes[parent].chosen = siblings.length - 1;
    if (role === "user" && parent === "root") this.title = text.trim().split("\n")[0].slice(0, 60) || this.title;
    return id;
  }

  // Which branch a message is in, and of how many.
  place(id) {
    const { children } = this.nodes[this.nodes[id].parent];
    return { index: children.indexOf(id), count: children.length };
  }

  turn(id, by) {
    const { index, count } = this.place(id);
    this.nodes[this.nodes[id].parent].chosen = Math.min(Math.max(index + by, 0), count - 1);
  }

  // The messages that an answer to `id` is asked with.
  messagesTo(id) {
    const messages = [];
    for (let at = id; at !== "root"; at = this.nodes[at].parent) {
      messages.unshift({ role: this.nodes[at].role, content: this.nodes[at].text });
    }
    return messages;
  }
}

// A conversation from JSON of anywhere. Raises an Error for what is none.
export function checked(value) {
  const made = new Conversation();
  const wrong = (what) => { throw new Error(`This is not a conversation: ${what}.`); };
  if (typeof value !== "object" || value === null || typeof value.nodes !== "object" || value.nodes === null) wrong("it has no nodes");
  made.title = typeof value.title === "string" ? value.title.slice(0, 200) : made.title;
  if (typeof value.id === "string" && /^[0-9a-f]{24}$/.test(value.id)) made.id = value.id;
  made.changed = Number.isFinite(value.changed) ? value.changed : made.changed;
  const read = (id, parent, depth) => {
    const node = Object.hasOwn(value.nodes, id) ? value.nodes[id] : null;
    if (typeof node !== "object" || node === null || !Array.isArray(node.children)) wrong("a node is missing");
    if (depth > 10_000 || made.nodes[id]?.parent !== undefined) wrong("a node is its own answer");
    if (id !== "root" && (!/^[0-9a-f]{24}$/.test(id) || !ROLES.includes(node.role) || typeof node.text !== "string")) wrong("a node has no text");
    const chosen = Number.isInteger(node.chosen) ? Math.min(Math.max(node.chosen, 0), Math.max(node.children.length - 1, 0)) : 0;
    made.nodes[id] = { role: node.role, children: [], chosen };
    if (id !== "root") {
      Object.assign(made.nodes[id], { parent, text: node.text });
      if (typeof node.reasoning === "string") made.nodes[id].reasoning = node.reasoning;
    }
    for (const child of node.children) {
      if (typeof child !== "string" || child === "root") wrong("a node is missing");
      made.nodes[id].children.push(child);
      waiting.push([child, id, depth + 1]);
    }
  };
  const waiting = [["root", undefined, 0]];
  while (waiting.length) read(...waiting.pop());
  return made;
}

export const store = {
  all() {
    const found = [];
    for (let place = 0; place < localStorage.length; place += 1) {
      const key = localStorage.key(place);
      if (!key.startsWith(PREFIX)) continue;
      try { found.push(checked(JSON.parse(localStorage.getItem(key)))); } catch { /* of another version */ }
    }
    return found.sort((a, b) => b.changed - a.changed);
  },
  save(conversation) {
    conversation.changed = Date.now();
    localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
  },
  remove(conversation) {
    localStorage.removeItem(PREFIX + conversation.id);
  },
};
