import { useMemo } from "react";
import type { ChangeReview, MissionDetails, ReviewFile } from "../../api/contract";
import { count, plainText } from "../../format";
import { Button } from "../../design/Button";
import type { Act, Decisions } from "./decisions";
import { HunkCard } from "./HunkCard";
import { Lines } from "./Lines";
import { Marks } from "./Marks";
import { linesOf, marksIn } from "./units";
import { useFileColours } from "./useFileColours";

interface Props {
  mission: MissionDetails;
  review: ChangeReview;
  file: ReviewFile;
  files: readonly ReviewFile[];
  state: Decisions;
  at: string | null;
  split: boolean;
  act: (made: Act) => void;
  onComment: () => void;
}

// In a file with very many hunks only those around the current one are drawn.
const AROUND = 15;

export function FileCard({ mission, review, file, files, state, at, split, act, onComment }: Props) {
  const lines = useMemo(() => linesOf(file), [file]);
  const colours = useFileColours(mission, review, file, lines);
  const place = Math.max(0, file.hunks.findIndex(({ id }) => id === at));
  const from = Math.max(0, place - AROUND);
  const to = Math.min(file.hunks.length, place + AROUND + 1);
  const tests = files.filter(({ path }) => file.tests.includes(path));
  return (
    <section aria-label={`Review of ${file.path}`} className="review-file">
      <FileHead file={file} act={act} />
      <Marks marks={marksIn(review, file, null)} said={file.reasons} />
      <div className={tests.length > 0 && !split ? "review-beside" : "review-alone"}>
        <div className="stack">
          {from > 0 && <p className="small soft">{count(from, "more hunk")} above</p>}
          {file.hunks.slice(from, to).map((hunk, index) => (
            <HunkCard
              key={hunk.id}
              file={file}
              hunk={hunk}
              number={from + index + 1}
              lines={lines[from + index] ?? []}
              marks={marksIn(review, file, hunk)}
              decision={state.decided[hunk.id] ?? null}
              comment={state.comments[hunk.id] ?? ""}
              isCurrent={hunk.id === at}
              isChosen={hunk.id === state.at}
              split={split}
              colours={colours}
              act={act}
              onComment={onComment}
            />
          ))}
          {to < file.hunks.length && <p className="small soft">{count(file.hunks.length - to, "more hunk")} below</p>}
        </div>
        {tests.length > 0 && <Covering mission={mission} review={review} tests={tests} act={act} />}
      </div>
    </section>
  );
}

function FileHead({ file, act }: { file: ReviewFile; act: (made: Act) => void }) {
  return (
    <header className="stack review-head">
      <div className="row">
        <h2 className="mono wrap">{plainText(file.path)}</h2>
        <span className="small soft">{[file.kind, file.change.replaceAll("_", " ")].join(", ")}</span>
        {file.added !== null && (
          <span className="numbers small">
            <span className="tone-good">+{file.added}</span> <span className="tone-bad">−{file.removed ?? 0}</span>
          </span>
        )}
        <Button kind="quiet" onClick={() => act({ type: "acceptFile" })}>
          Accept the rest of the file
        </Button>
      </div>
      {file.reasons.length > 0 && (
        <ul className="small review-reasons" aria-label="Why it deserves a look">
          {file.reasons.map(({ code, message }) => (
            <li key={code + message}>
              <strong>{code.replaceAll("_", " ")}</strong>: {plainText(message)}
            </li>
          ))}
        </ul>
      )}
      {file.truncated && <p className="small tone-warn">Not all of its lines are shown.</p>}
    </header>
  );
}

interface CoveringProps {
  mission: MissionDetails;
  review: ChangeReview;
  tests: readonly ReviewFile[];
  act: (made: Act) => void;
}

/** The tests of this change that seem to cover the file, shown next to it. */
function Covering({ tests, ...rest }: CoveringProps) {
  return (
    <aside aria-label="Tests that look to cover it" className="stack">
      {tests.slice(0, 3).map((test) => (
        <CoveringTest key={test.path} test={test} {...rest} />
      ))}
    </aside>
  );
}

function CoveringTest({ mission, review, test, act }: Omit<CoveringProps, "tests"> & { test: ReviewFile }) {
  const hunks = useMemo(() => linesOf(test), [test]);
  const colours = useFileColours(mission, review, test, hunks);
  return (
    <details className="file-diff" open>
      <summary className="mono small file-name wrap">Test: {plainText(test.path)}</summary>
      {hunks.slice(0, AROUND).map((lines, index) => (
        <Lines key={test.hunks[index]?.id} lines={lines} split={false} colours={colours} />
      ))}
      <Button kind="quiet" onClick={() => test.hunks[0] && act({ type: "go", id: test.hunks[0].id })}>
        Review it
      </Button>
    </details>
  );
}
