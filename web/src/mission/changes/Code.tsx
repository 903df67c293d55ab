import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { plainText } from "../../format";
import type { Word } from "./colours";

// More of a line is shown on demand: a minified file must not stop the page.
const LONGEST = 2_000;

/** Returns what colours the lines of a file, once it is loaded. */
export function useColours(path: string): ((line: string) => Word[]) | null {
  const { data } = useQuery({
    queryKey: ["colours", path],
    queryFn: async () => ({ words: (await import("./colours")).wordsOf(path) }),
    staleTime: Infinity,
  });
  return data?.words ?? null;
}

interface Props {
  text: string;
  words: ((line: string) => Word[]) | null;
}

/** A line of code as text, in colours where its kind is known. */
export function Code({ text, words }: Props) {
  const [whole, setWhole] = useState(false);
  const left = whole ? 0 : text.length - LONGEST;
  const shown = plainText(left > 0 ? text.slice(0, LONGEST) : text);
  return (
    <code className="wrap" data-row tabIndex={-1}>
      {words && shown.length <= LONGEST ? words(shown).map(([kind, part], at) => (kind === "" ? part : <span key={at} className={`code-${kind}`}>{part}</span>)) : shown || " "}
      {left > 0 && (
        <button type="button" className="link-button" onClick={() => setWhole(true)}>
          … {left} more characters
        </button>
      )}
    </code>
  );
}
