import { useEffect, useState } from "react";
import { coloursOf, partsOf, type Colours, type Texts } from "./colours";
import type { Word } from "./grammar";
import { languageOf } from "./languages";
import type { DiffLine } from "./patch";
import type { Asked } from "./worker";

// A crafted text can keep a grammar busy for ever: it then stays without colours.
const PATIENCE_MS = 5_000;

/**
 * Returns the colours of a change once they are computed. `texts` holds both files: null if unknown, undefined
 * while loading.
 */
export function useColours(path: string, lines: readonly DiffLine[], texts: Texts | null | undefined): Colours | null {
  const [colours, setColours] = useState<Colours | null>(null);
  useEffect(() => {
    const language = languageOf(path);
    const parts = texts === undefined || language === null ? [] : partsOf(lines, texts);
    if (language === null || parts.length === 0) return;
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    const end = () => worker.terminate();
    const timer = setTimeout(end, PATIENCE_MS);
    worker.onmessage = ({ data }: MessageEvent<Word[][][]>) => {
      setColours(coloursOf(parts, data));
      end();
    };
    worker.postMessage({ language, texts: parts.map(({ text }) => text) } satisfies Asked);
    return () => {
      clearTimeout(timer);
      end();
    };
  }, [path, lines, texts]);
  return colours;
}
