/** The language of a file by its name. A grammar is loaded when a file in its language is shown. */

/** Languages by file extension. */
export const ENDINGS: ReadonlyMap<string, string> = new Map(Object.entries({
  bash: "bash", c: "c", cc: "cpp", cfg: "ini", cjs: "javascript", clj: "clojure", cmake: "cmake", conf: "ini", cpp: "cpp", cs: "csharp", css: "css",
  cts: "typescript", dart: "dart", elm: "elm", ex: "elixir", exs: "elixir", go: "go", gradle: "groovy", graphql: "graphql", groovy: "groovy", h: "c",
  hpp: "cpp", hs: "haskell", htm: "xml", html: "xml", ini: "ini", java: "java", js: "javascript", json: "json", jsonc: "json", jsx: "javascript",
  kt: "kotlin", kts: "kotlin", less: "less", lua: "lua", md: "markdown", mjs: "javascript", mk: "makefile", mts: "typescript", nix: "nix", php: "php",
  pl: "perl", pm: "perl", proto: "protobuf", ps1: "powershell", py: "python", pyi: "python", r: "r", rb: "ruby", rs: "rust", scala: "scala",
  scss: "scss", sh: "bash", sql: "sql", svg: "xml", swift: "swift", toml: "ini", ts: "typescript", tsx: "typescript", vue: "xml", xml: "xml",
  yaml: "yaml", yml: "yaml", zsh: "bash",
}));
const NAMES: ReadonlyMap<string, string> = new Map(Object.entries({ dockerfile: "dockerfile", makefile: "makefile", "cmakelists.txt": "cmake", gemfile: "ruby", rakefile: "ruby" }));

export function languageOf(path: string): string | null {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  const dot = name.lastIndexOf(".");
  return NAMES.get(name) ?? (dot < 0 ? null : (ENDINGS.get(name.slice(dot + 1)) ?? null));
}
