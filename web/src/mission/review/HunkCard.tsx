import { useEffect, useRef } from "react";
import type { ReviewFile, ReviewHunk, ReviewMark } from "../../api/contract";
import { Badge } from "../../design/Badge";
import { Button } from "../../design/Button";
import { plainText } from "../../format";
import type { Colours } from "../changes/colours";
import type { DiffLine } from "../changes/patch";
import type { Act, Decision } from "./decisions";
import { Lines } from "./Lines";
import { Marks } from "./Marks";

interface Props {
  file: ReviewFile;
  hunk: ReviewHunk;
  number: number;
  lines: readonly DiffLine[];
  marks: readonly ReviewMark[];
  decision: Decision | null;
  comment: string;
  isCurrent: boolean;
  /** A person selected it: the page scrolls to it. */
  isChosen: boolean;
  split: boolean;
  colours: Colours | null;
  act: (made: Act) => void;
  onComment: () => void;
}

/** One hunk; a decided hunk is folded unless it is the current one. */
export function HunkCard({ file, hunk, number, lines, marks, decision, comment, isCurrent, isChosen, split, colours, act, onComment }: Props) {
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    if (!isChosen || !card.current) return;
    card.current.focus({ preventScroll: true });
    card.current.scrollIntoView({ block: "nearest" });
  }, [isChosen]);
  const decide = (made: Decision) => {
    act({ type: "go", id: hunk.id });
    act({ type: "decide", decision: made });
  };
  const name = `Hunk ${number} of ${file.hunks.length}`;
  return (
    <article ref={card} tabIndex={-1} aria-label={`${name}, ${decision ?? "not decided"}`} aria-current={isCurrent} className={`hunk ${decision ?? ""}`}>
      <header className="row">
        <button type="button" className="hunk-name" aria-expanded={isCurrent || decision === null} onClick={() => act({ type: "go", id: hunk.id })}>
          {name}
        </button>
        <span className="small soft">{origin(hunk)}</span>
        {decision && (
          <Badge tone={decision === "accepted" ? "good" : "bad"} icon={decision === "accepted" ? "promoted" : "undone"}>
            {decision === "accepted" ? "Accepted" : "Rejected"}
          </Badge>
        )}
        <span className="row hunk-acts">
          <Button kind="quiet" onClick={() => decide("accepted")} aria-label={`Accept ${name.toLowerCase()}`}>
            Accept
          </Button>
          <Button kind="quiet" onClick={() => decide("rejected")} aria-label={`Reject ${name.toLowerCase()}`}>
            Reject
          </Button>
          <Button
            kind="quiet"
            aria-label={`Comment on ${name.toLowerCase()}`}
            onClick={() => {
              act({ type: "go", id: hunk.id });
              onComment();
            }}
          >
            Comment
          </Button>
        </span>
      </header>
      {comment && <p className="hunk-comment wrap">{plainText(comment)}</p>}
      {(isCurrent || decision === null) && (
        <>
          <Marks marks={marks} />
          {lines.length > 0 ? <Lines lines={lines} split={split} colours={colours} /> : <p className="soft hunk-empty">{withoutLines(file)}</p>}
        </>
      )}
    </article>
  );
}

function origin({ attempt, trigger }: ReviewHunk): string {
  if (attempt !== null) return `by attempt ${attempt}`;
  return trigger === null ? "" : plainText(trigger);
}

function withoutLines(file: ReviewFile): string {
  if (file.binary) return "Binary content.";
  return file.truncated ? "Too large to be shown." : "No line differs: it is empty, or its kind or permission changed.";
}
