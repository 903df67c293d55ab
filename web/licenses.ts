/** Writes a build's license file: the license texts of all packages whose code the build contains. */
import { readdirSync, readFileSync } from "node:fs";
import type { Plugin } from "vite";

const FILE = "licenses.txt";
const TEXT = /^(licen[sc]e|copying|notice)(\.|$)/i;
const PACKAGE = /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/;
// Other licenses may require more than including their text, or may be incompatible with Apache-2.0.
const ALLOWED = ["MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "0BSD"];

/** Returns one plugin for the pages and one for their workers, which Vite builds separately and first. */
export function licenses(): { pages: Plugin; worker: Plugin } {
  const found = new Set<string>();
  const renderChunk = (_code: string, chunk: { moduleIds: string[] }) => {
    for (const id of chunk.moduleIds) {
      const [place] = PACKAGE.exec(id) ?? [];
      if (place !== undefined) found.add(place);
    }
    return null;
  };
  return {
    pages: {
      name: "licenses",
      renderChunk,
      generateBundle() {
        this.emitFile({ type: "asset", fileName: FILE, source: licenseTexts([...found]) });
      },
    },
    worker: { name: "licenses-of-workers", renderChunk },
  };
}

/** Returns the license texts of the packages in these directories, each text once. */
export function licenseTexts(places: readonly string[]): string {
  const texts = new Map<string, string[]>();
  for (const place of places) {
    const { name, version, license } = JSON.parse(readFileSync(`${place}/package.json`, "utf8")) as Record<string, string>;
    const files = readdirSync(place).filter((file) => TEXT.test(file)).sort();
    if (files.length === 0) throw new Error(`${name} has no license text: ask for it, or leave the package out`);
    if (!ALLOWED.includes(license ?? "")) throw new Error(`${name} has the license ${license}: see web/licenses.ts`);
    const text = files.map((file) => readFileSync(`${place}/${file}`, "utf8").replaceAll("\r", "").trim()).join("\n\n");
    texts.set(text, [...(texts.get(text) ?? []), `${name} ${version} (${license})`]);
  }
  const parts = [...texts].map(([text, names]) => `${names.sort().join("\n")}\n\n${text}\n`).sort();
  return ["The dashboard holds code of these packages, under these licenses.\n", ...parts].join(`\n${"-".repeat(80)}\n\n`);
}
