/**
 * Parses a text with the grammar of its language into lines of coloured words. Runs in a worker: a hostile text
 * may take long.
 */
import { createLowlight, type LanguageFn } from "lowlight";

export type WordKind = "string" | "comment" | "number" | "keyword" | "name" | "";
export type Word = readonly [kind: WordKind, text: string];
type Tree = ReturnType<ReturnType<typeof createLowlight>["highlight"]>;
type Node = Tree["children"][number];

const KINDS: Readonly<Record<string, WordKind>> = {
  keyword: "keyword", built_in: "keyword", literal: "keyword", type: "keyword", meta: "keyword", "selector-tag": "keyword", name: "keyword", operator: "",
  string: "string", regexp: "string", symbol: "string", link: "string", code: "string", number: "number", bullet: "number", comment: "comment",
  quote: "comment", doctag: "comment", title: "name", attr: "name", attribute: "name", section: "name", property: "name", "selector-class": "name",
  "selector-id": "name", variable: "name", "template-variable": "name", subst: "", params: "",
};
const GRAMMARS = import.meta.glob<{ default: LanguageFn }>(
  "/node_modules/highlight.js/es/languages/{bash,c,clojure,cmake,cpp,csharp,css,dart,dockerfile,elixir,elm,go,graphql,groovy,haskell,ini,java,javascript,json,kotlin,less,lua,makefile,markdown,nix,perl,php,powershell,protobuf,python,r,ruby,rust,scala,scss,sql,swift,typescript,xml,yaml}.js",
);
const lowlight = createLowlight();

/** Returns the lines of a text, each split into words that join to the line. */
export async function colourLines(language: string, text: string): Promise<Word[][]> {
  if (!lowlight.registered(language)) {
    const load = GRAMMARS[`/node_modules/highlight.js/es/languages/${language}.js`];
    if (!load) throw new Error(`there is no grammar of ${language}`);
    lowlight.register(language, (await load()).default);
  }
  const lines: Word[][] = [[]];
  const take = (node: Node, around: WordKind): void => {
    if (node.type === "element") {
      const scope = (node.properties["className"])?.[0]?.replace("hljs-", "") ?? "";
      for (const child of node.children) take(child, KINDS[scope] ?? around);
    } else if (node.type === "text") {
      for (const [at, part] of node.value.split("\n").entries()) {
        if (at > 0) lines.push([]);
        if (part !== "") lines.at(-1)?.push([around, part]);
      }
    }
  };
  for (const child of lowlight.highlight(language, text).children) take(child, "");
  return lines;
}
