import { useState } from "react";
import { plainText } from "../../format";
import { wordsOf, type Colours, type Side } from "./colours";
import type { DiffLine } from "./patch";

// The rest of a long line is shown on demand: a minified file must not freeze the page.
const LONGEST = 2_000;
const SIGNS = { added: "+", removed: "−", context: " ", hunk: "", note: "" } as const;
const WORDS = { added: "added: ", removed: "removed: ", context: "", hunk: "", note: "" } as const;

interface Props {
  line: DiffLine;
  /** The side that colours a line which is on both sides. */
  side?: Side;
  colours: Colours | null;
}

/** A line of a change as text: its sign, and its words in colour if its language is known. */
export function Code({ line, side = line.new === null ? "old" : "new", colours }: Props) {
  const [whole, setWhole] = useState(false);
  const { kind, text } = line;
  const left = whole ? 0 : text.length - LONGEST;
  const words = text.length > LONGEST ? null : wordsOf(colours, line, side);
  return (
    <>
      <span className="diff-sign" aria-hidden="true">
        {SIGNS[kind]}
      </span>
      <code className="wrap" data-row tabIndex={-1}>
        {WORDS[kind] && <span className="sr-only">{WORDS[kind]}</span>}
        {words
          ? words.map(([kindOf, part], at) => (kindOf === "" ? plainText(part) : <span key={at} className={`code-${kindOf}`}>{plainText(part)}</span>))
          : plainText(left > 0 ? text.slice(0, LONGEST) : text) || " "}
        {left > 0 && (
          <button type="button" className="link-button" onClick={() => setWhole(true)}>
            … {left} more characters
          </button>
        )}
      </code>
    </>
  );
}
