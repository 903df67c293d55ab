import { memo } from "react";
import { Code } from "../changes/Code";
import type { Colours, Side } from "../changes/colours";
import type { DiffLine } from "../changes/patch";
import { pairLines } from "./units";

interface Props {
  lines: readonly DiffLine[];
  split: boolean;
  colours: Colours | null;
}

/** The lines of one hunk, one below the other or old and new side by side. */
export const Lines = memo(function Lines({ lines, split, colours }: Props) {
  if (!split) {
    return (
      <div className="diff">
        {lines.map((line, index) => (
          <div key={index} className={`diff-line ${line.kind}`}>
            <span className="diff-number">{line.old}</span>
            <span className="diff-number">{line.new}</span>
            <Code line={line} colours={colours} />
          </div>
        ))}
      </div>
    );
  }
  return (
    <div className="diff">
      {pairLines(lines).map(({ left, right }, index) => (
        <div key={index} className="diff-pair">
          <Half line={left} side="old" colours={colours} />
          <Half line={right} side="new" colours={colours} />
        </div>
      ))}
    </div>
  );
});

interface SideProps {
  line: DiffLine | null;
  side: Side;
  colours: Colours | null;
}

function Half({ line, side, colours }: SideProps) {
  return (
    <div className={`diff-side ${line?.kind ?? "none"}`}>
      <span className="diff-number">{line?.[side]}</span>
      {line && <Code line={line} side={side} colours={colours} />}
    </div>
  );
}
