import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { licenseTexts } from "./licenses";

function installed(name: string, license: string, files: Record<string, string>): string {
  const place = join(mkdtempSync(join(tmpdir(), "licenses-")), "node_modules", name);
  mkdirSync(place, { recursive: true });
  const described = { "package.json": JSON.stringify({ name, version: "1.2.3", license }), ...files };
  for (const [file, text] of Object.entries(described)) writeFileSync(join(place, file), text);
  return place;
}

test("each text stands there once, below all packages that it goes with", () => {
  const text = licenseTexts([
    installed("b", "MIT", { LICENSE: "Copyright of both\r\n" }),
    installed("a", "MIT", { "license.md": "Copyright of both", "index.js": "no license" }),
    installed("c", "Apache-2.0", { LICENSE: "Apache", NOTICE: "made by c" }),
  ]);
  expect(text).toContain("a 1.2.3 (MIT)\nb 1.2.3 (MIT)\n\nCopyright of both\n");
  expect(text).toContain("c 1.2.3 (Apache-2.0)\n\nApache\n\nmade by c\n");
  expect(text.match(/Copyright of both/g)).toHaveLength(1);
});

test("what may not go along, or has no text, stops the build", () => {
  expect(() => licenseTexts([installed("d", "GPL-3.0", { LICENSE: "GPL" })])).toThrow("d has the license GPL-3.0");
  expect(() => licenseTexts([installed("e", "MIT", { "README.md": "MIT" })])).toThrow("e has no license text");
});
