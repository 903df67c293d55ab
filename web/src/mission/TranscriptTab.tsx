import { useInfiniteQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { MissionDetails, TranscriptLine } from "../api/contract";
import { transcriptQuery } from "../api/logQueries";
import { Button } from "../design/Button";
import { EmptyState, Loaded } from "../design/states";
import { VirtualList } from "../design/VirtualList";
import { count, plainText } from "../format";
import { ActionDialog } from "./ActionDialog";
import { actionsOf } from "./actions";
import { ArtifactLink } from "./ArtifactLink";
import { useCanAct } from "./useCanAct";
import { useTail } from "./useTail";

export default function TranscriptTab({ mission }: { mission: MissionDetails }) {
  const query = useInfiniteQuery(transcriptQuery(mission.mission));
  useTail(mission.mission, query);
  const [forkAt, setForkAt] = useState<string | null>(null);
  const canAct = useCanAct();
  const fork = canAct ? actionsOf(mission).find(({ id }) => id === "fork") : undefined;
  const lines = useMemo(() => query.data?.pages.flatMap((page) => page.lines) ?? [], [query.data]);
  return (
    <Loaded query={query} label="Loading the transcript">
      {() =>
        lines.length === 0 ? (
          <EmptyState title="No messages yet.">
            <p className="soft">Only agents that Chargehand can listen to have a transcript.</p>
          </EmptyState>
        ) : (
          <>
            <VirtualList label="Transcript" className="transcript" items={lines} height={90} measured>
              {(line, index) => (
                <Line line={line} onFork={fork && isFirstOf(lines, index) ? () => setForkAt(line.reply) : undefined} />
              )}
            </VirtualList>
            {fork && forkAt !== null && (
              <ActionDialog mission={mission} action={fork} given={{ at: forkAt }} onClose={() => setForkAt(null)} />
            )}
          </>
        )
      }
    </Loaded>
  );
}

// A reply consists of text and calls: one button is enough for all of it.
function isFirstOf(lines: readonly TranscriptLine[], index: number): boolean {
  const line = lines[index];
  if (!line?.reply || !["model", "call"].includes(line.speaker)) return false;
  return lines[index - 1]?.reply !== line.reply;
}

const SPEAKERS: Record<string, string> = { person: "Person", model: "Model", call: "Calls", result: "Result", agent: "Agent", thought: "Thought", error: "Error" };
// Longer text is folded: a page of output must not hide the lines after it.
const FOLD_LINES = 24;
const FOLD_CHARACTERS = 4_000;

function Line({ line, onFork }: { line: TranscriptLine; onFork: (() => void) | undefined }) {
  const [open, setOpen] = useState(false);
  const { folded, size } = useMemo(() => fold(line.text), [line.text]);
  return (
    <div className={`transcript-line ${line.speaker}`}>
      <div className="row small transcript-head">
        <strong>{SPEAKERS[line.speaker] ?? line.speaker}</strong>
        {line.tool && <code>{plainText(line.tool)}</code>}
        {line.model && <span className="soft">{line.model}</span>}
        {line.reply && <span className="soft numbers">{line.reply}</span>}
        {line.failed && <span className="tone-bad">failed</span>}
        {line.own_word && <span className="soft">the agent’s own word</span>}
        {line.artifact && <ArtifactLink id={line.artifact} label="all of it" />}
        {onFork && (
          <Button kind="quiet" icon="fork" data-row onClick={onFork} aria-label={`Fork at reply ${line.reply}`}>
            Fork here
          </Button>
        )}
      </div>
      <pre className="wrap" data-row={onFork ? undefined : ""} tabIndex={-1}>
        {size === null || open ? plainText(line.text) : folded}
      </pre>
      {size !== null && (
        <Button kind="quiet" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? "Show less" : `Show all ${size}`}
        </Button>
      )}
    </div>
  );
}

/** Returns the beginning of a long text and the size of all of it, or `null` as size if the text is short. */
function fold(text: string): { folded: string; size: string | null } {
  const rows = text.split("\n", FOLD_LINES + 1);
  const beginning = rows.slice(0, FOLD_LINES).join("\n").slice(0, FOLD_CHARACTERS);
  if (beginning.length === text.length) return { folded: beginning, size: null };
  const size = rows.length > FOLD_LINES ? count(text.split("\n").length, "line") : count(text.length, "character");
  return { folded: plainText(beginning), size };
}
