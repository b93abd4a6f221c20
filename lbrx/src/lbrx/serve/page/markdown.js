// Markdown to nodes of the document. Text becomes text nodes, never HTML: nothing here parses markup,
// links lead to http, https and mailto alone, and pictures are links, so that nothing is loaded.
import { highlighted } from "./highlight.js";

const LINK = /^(https?:|mailto:)/i;
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +)(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])( *\1){2,}\s*$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 8;

function element(name, content = [], properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...content);
  return made;
}

// The patterns of inline markup, the first that matches earliest wins. Formulas stay as they are.
const INLINE = [
  [/(`+)([^`](?:[\s\S]*?[^`])?)\1(?!`)/, (m) => element("code", [m[2].replace(/^ (.*) $/, "$1")])],
  [/\$\$[\s\S]+?\$\$|\\\([\s\S]+?\\\)|\\\[[\s\S]+?\\\]|\$(?! )[^$\n]*?[^\s$]\$(?!\d)/,
    (m) => element("code", [m[0]], { className: "formula" })],
  [/!?\[([^\]\n]{0,1000})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+"[^"]*")?\s*\)/, (m, deep) => link(m[1], m[2], deep)],
  [/<(https?:\/\/[^\s<>]{1,2000})>|\bhttps?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]}]/, (m) => link(null, m[1] || m[0], DEEPEST)],
  [/(\*\*|__)(?=\S)([\s\S]*?\S)\1/, (m, deep) => element("strong", inline(m[2], deep + 1))],
  [/\*(?=[^\s*])([^*]*?[^\s*])\*(?!\*)|\b_(?=\S)([^_]*?\S)_\b/, (m, deep) => element("em", inline(m[1] ?? m[2], deep + 1))],
  [/~~(?=\S)([\s\S]*?\S)~~/, (m, deep) => element("del", inline(m[1], deep + 1))],
  [/\\([\\`*_{}[\]()#+.!|~>-])/, (m) => m[1]],
  [/ {2,}\n|\\\n/, () => element("br")],
];

function link(text, address, deep) {
  const shown = text === null ? [address] : inline(text || address, deep + 1);
  if (!LINK.test(address)) return element("span", shown);
  return element("a", shown, { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
}

export function inline(text, deep = 0) {
  if (deep >= DEEPEST) return [text];
  const nodes = [];
  let rest = text;
  while (rest) {
    let first = null;
    for (const [pattern, make] of INLINE) {
      const found = pattern.exec(rest);
      if (found && (first === null || found.index < first.found.index)) first = { found, make };
    }
    if (first === null) break;
    if (first.found.index) nodes.push(rest.slice(0, first.found.index));
    nodes.push(first.make(first.found, deep));
    rest = rest.slice(first.found.index + first.found[0].length);
  }
  if (rest) nodes.push(rest);
  return nodes;
}

// The text of each block, so that a stream renders again only what has changed.
export function blocksOf(text) {
  const blocks = [];
  let lines = [], fence = null, formula = false;
  const end = () => { if (lines.some((line) => line.trim())) blocks.push(lines.join("\n")); lines = []; };
  for (const line of text.replace(/\r\n?/g, "\n").split("\n")) {
    const mark = FENCE.exec(line);
    if (fence) {
      lines.push(line);
      if (line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "")) { fence = null; end(); }
    } else if (formula) {
      lines.push(line);
      if (/\$\$|\\\]/.test(line)) { formula = false; end(); }
    } else if (mark && !mark[1].length) {
      end(); lines.push(line); fence = mark[2];
    } else if (/^\s*(\$\$|\\\[)/.test(line) && !/^\s*(\$\$.*\$\$|\\\[.*\\\])/.test(line)) {
      end(); lines.push(line); formula = true;
    } else if (!line.trim()) {
      if (lines.length && ITEM.test(lines[0])) lines.push(line); else end();
    } else if (HEADING.test(line) || RULE.test(line)) {
      end(); lines.push(line); end();
    } else {
      // A list goes on with items and indented lines; an item after a paragraph begins a list.
      const inList = lines.length && ITEM.test(lines[0]);
      const apart = inList ? !ITEM.test(line) && !/^\s/.test(line) && !lines.at(-1).trim() : ITEM.test(line);
      if (lines.length && apart) end();
      lines.push(line);
    }
  }
  end();
  return blocks;
}

export function block(text, deep = 0) {
  const lines = text.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines, fence);
  const heading = lines.length === 1 && HEADING.exec(lines[0]);
  if (heading) return element(`h${Math.min(heading[1].length + 2, 6)}`, inline(heading[2]));
  if (lines.length === 1 && RULE.test(lines[0])) return element("hr");
  if (deep < DEEPEST && lines.every((line) => /^ {0,3}>/.test(line))) {
    return element("blockquote", rendered(lines.map((line) => line.replace(/^ {0,3}> ?/, "")).join("\n"), deep + 1));
  }
  if (deep < DEEPEST && ITEM.test(lines[0])) return list(lines, deep);
  if (lines.length > 1 && lines[0].includes("|") && DIVIDER.test(lines[1])) return table(lines);
  return element("p", inline(lines.join("\n")));
}

export function rendered(text, deep = 0) {
  return blocksOf(text).map((each) => block(each, deep));
}

function code(lines, [, , marks, language]) {
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(marks);
  const source = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copy = element("button", ["Copy"], { type: "button", className: "copy" });
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(source);
    copy.textContent = "Copied";
  });
  const pre = element("pre", [element("code", highlighted(source, language))], { tabIndex: 0 });
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code in ${language}` : "Code");
  return element("div", [copy, pre], { className: "code" });
}

function list(lines, deep) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length <= indent.length + 1) items.push([found[4], found[1].length + found[2].length + 1]);
    else {
      const item = items.at(-1);
      item[0] += `\n${line.startsWith(" ".repeat(item[1])) ? line.slice(item[1]) : line.trimStart()}`;
    }
  }
  const made = items.map(([text]) => {
    const parts = rendered(text, deep + 1);
    // A tight item has no paragraph around its text.
    const tight = parts.flatMap((part) => (part.tagName === "P" ? [...part.childNodes] : [part]));
    return element("li", parts.filter((part) => part.tagName === "P").length > 1 ? parts : tight);
  });
  return /\d/.test(mark) ? element("ol", made, { start: parseInt(mark, 10) }) : element("ul", made);
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim());
  const row = (line, name) => element("tr", cells(line).map((cell) => element(name, inline(cell))));
  const head = element("thead", [row(lines[0], "th")]);
  const body = element("tbody", lines.slice(2).map((line) => row(line, "td")));
  const scroll = element("div", [element("table", [head, body])], { className: "scroll", tabIndex: 0 });
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Table");
  return scroll;
}

// Shows a text that grows: blocks that did not change keep their nodes, and so what is selected in them.
export class GrowingMarkdown {
  constructor(place) {
    this.place = place;
    this.shown = [];
  }

  show(text) {
    const blocks = blocksOf(text);
    let same = 0;
    while (same < blocks.length && blocks[same] === this.shown[same]) same += 1;
    while (this.place.childNodes.length > same) this.place.lastChild.remove();
    this.place.append(...blocks.slice(same).map((each) => block(each)));
    this.shown = blocks;
  }
}
