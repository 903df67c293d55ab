import { memo } from "react";
import { plainText } from "../../format";
import type { DiffLine } from "../changes/patch";
import { pairLines } from "./units";

const SIGNS = { added: "+", removed: "−", context: " ", hunk: "", note: "" } as const;
const WORDS = { added: "added: ", removed: "removed: ", context: "", hunk: "", note: "" } as const;

/** The lines of one hunk, one below the other or old beside new. */
export const Lines = memo(function Lines({ lines, split }: { lines: readonly DiffLine[]; split: boolean }) {
  if (!split) {
    return (
      <div className="diff">
        {lines.map((line, index) => (
          <div key={index} className={`diff-line ${line.kind}`}>
            <span className="diff-number">{line.old}</span>
            <span className="diff-number">{line.new}</span>
            <Content line={line} />
          </div>
        ))}
      </div>
    );
  }
  return (
    <div className="diff">
      {pairLines(lines).map(({ left, right }, index) => (
        <div key={index} className="diff-pair">
          <Side line={left} number={left?.old ?? null} />
          <Side line={right} number={right?.new ?? null} />
        </div>
      ))}
    </div>
  );
});

function Side({ line, number }: { line: DiffLine | null; number: number | null }) {
  return (
    <div className={`diff-side ${line?.kind ?? "none"}`}>
      <span className="diff-number">{number}</span>
      {line && <Content line={line} />}
    </div>
  );
}

function Content({ line }: { line: DiffLine }) {
  return (
    <>
      <span className="diff-sign" aria-hidden="true">
        {SIGNS[line.kind]}
      </span>
      <code className="wrap">
        {WORDS[line.kind] && <span className="sr-only">{WORDS[line.kind]}</span>}
        {plainText(line.text) || " "}
      </code>
    </>
  );
}
