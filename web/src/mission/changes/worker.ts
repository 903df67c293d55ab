/** Colours texts beside the page: whoever started it ends it. */
import { colourLines, type Word } from "./grammar";

export interface Asked {
  language: string;
  texts: string[];
}

self.onmessage = async ({ data }: MessageEvent<Asked>) => {
  const lines: Word[][][] = [];
  for (const text of data.texts) lines.push(await colourLines(data.language, text));
  self.postMessage(lines);
};
