// Colours for code: words, strings, numbers and remarks, in the styles of most languages.
const WORDS = new Set((
  "abstract and as assert async await break case catch class const constexpr continue def default defer del do elif else enum " +
  "except export extends false finally fn for from func function global go if impl import in instanceof int interface is " +
  "kernel lambda let loop match mod mut namespace new nil none None not null or package pass private protected pub public raise " +
  "return self static struct super switch template this throw True true False try type typedef typeof union unsafe use using " +
  "var void where while with yield SELECT FROM WHERE JOIN INSERT UPDATE DELETE CREATE TABLE float double char bool long short " +
  "unsigned half uint device constant threadgroup"
).split(" "));
const HASH = new Set(["py", "python", "sh", "bash", "shell", "zsh", "yaml", "yml", "toml", "ruby", "rb", "r", "make", "dockerfile", "ini"]);
const PLAIN = new Set(["", "text", "txt", "plain", "console", "output"]);

export function highlighted(source, language) {
  const name = language.toLowerCase();
  if (PLAIN.has(name)) return [source];
  const remark = HASH.has(name) ? "#[^\\n]*" : name === "sql" ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)";
  const text = `"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?|\`(?:[^\`\\\\]|\\\\.)*\`?`;
  const long = HASH.has(name) ? `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|` : "";
  const token = new RegExp(`(?<remark>${remark})|(?<string>${long}${text})|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_]\\w*)`, "g");
  const nodes = [];
  let end = 0;
  for (const found of source.matchAll(token)) {
    const kind = Object.keys(found.groups).find((each) => found.groups[each] !== undefined);
    if (kind === "word" && !WORDS.has(found[0])) continue;
    if (found.index > end) nodes.push(source.slice(end, found.index));
    const part = document.createElement("span");
    part.className = kind;
    part.textContent = found[0];
    nodes.push(part);
    end = found.index + found[0].length;
  }
  if (end < source.length) nodes.push(source.slice(end));
  return nodes;
}
