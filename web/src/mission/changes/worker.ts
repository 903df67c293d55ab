/** Colours texts in a worker thread, which its creator terminates. */
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
