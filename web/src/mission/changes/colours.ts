/** Colours the words of a line of code: strings, comments, numbers, keywords. A line is read by itself. */

export type WordKind = "string" | "comment" | "number" | "keyword" | "";
export type Word = readonly [kind: WordKind, text: string];

const KEYWORDS = new Set(
  (
    "abstract and any as assert async await bool boolean break case catch char class const constexpr continue crate def default defer del delete do " +
    "double elif else elsif end enum except export extends extern false final finally float fn for from func function global go goto if impl implements " +
    "import in include instanceof int interface is let long loop match mod module mut namespace new nil none nonlocal not null or override package pass " +
    "private protected pub public raise range return self short signed sizeof static str string struct super switch template then this throw throws trait " +
    "true try type typedef typeof undefined union unless unsigned until use using var virtual void volatile when where while with yield"
  ).split(" "),
);
const HASH = new Set(["py", "rb", "sh", "bash", "zsh", "toml", "yaml", "yml", "pl", "r", "mk", "cfg", "ini", "conf", "tf", "nix"]);
const SLASH = new Set(["ts", "tsx", "js", "jsx", "mjs", "cjs", "c", "h", "cc", "cpp", "hpp", "cs", "java", "kt", "go", "rs", "swift", "scala", "php", "dart", "proto", "scss", "css", "json", "jsonc"]);
const DASH = new Set(["sql", "lua", "hs", "elm"]);
const STRING = `"(?:[^"\\\\]|\\\\.)*"?|'(?:[^'\\\\]|\\\\.)*'?|\`(?:[^\`\\\\]|\\\\.)*\`?`;

/** Returns what splits a file's lines into words, `null` where its kind is not known: then nothing is coloured. */
export function wordsOf(path: string): ((line: string) => Word[]) | null {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  const kind = name === "dockerfile" || name === "makefile" ? "mk" : name.slice(name.lastIndexOf(".") + 1);
  const comment = HASH.has(kind) ? "#.*" : SLASH.has(kind) ? "//.*|/\\*.*?(?:\\*/|$)|^\\s*\\*(?: .*|/?$)" : DASH.has(kind) ? "--.*" : null;
  if (comment === null) return null;
  const expression = new RegExp(`(${comment})|(${STRING})|\\b(\\d[\\w.]*)\\b|([A-Za-z_]\\w*)`, "g");
  return (line) => {
    const words: Word[] = [];
    let done = 0;
    for (const found of line.matchAll(expression)) {
      const kindOf = found[1] ? "comment" : found[2] ? "string" : found[3] ? "number" : KEYWORDS.has(found[0]) ? "keyword" : "";
      if (kindOf === "") continue;
      if (found.index > done) words.push(["", line.slice(done, found.index)]);
      words.push([kindOf, found[0]]);
      done = found.index + found[0].length;
    }
    if (done < line.length) words.push(["", line.slice(done)]);
    return words;
  };
}
