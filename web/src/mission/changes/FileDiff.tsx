import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { fileChangeQuery } from "../../api/queries";
import { EmptyState, Loaded } from "../../design/states";
import { VirtualList } from "../../design/VirtualList";
import { plainText } from "../../format";
import { readPatch, type DiffLine } from "./patch";

interface Props {
  mission: string;
  path: string;
  from: string;
  to: string;
}

export function FileDiff({ mission, path, from, to }: Props) {
  const query = useQuery(fileChangeQuery(mission, path, from, to));
  return (
    <section aria-label={`Changes of ${path}`} className="file-diff">
      <h2 className="mono small file-name wrap">{plainText(path)}</h2>
      <Loaded query={query} label={`Loading the changes of ${path}`}>
        {({ patch }) => <Patch patch={patch} />}
      </Loaded>
    </section>
  );
}

const SIGNS = { added: "+", removed: "−", context: " ", hunk: "", note: "" } as const;
const WORDS = { added: "added", removed: "removed", context: "", hunk: "", note: "" } as const;

function Patch({ patch }: { patch: string }) {
  const lines = useMemo(() => readPatch(patch), [patch]);
  if (lines.length === 0) return <EmptyState title="Its lines are the same." />;
  return (
    <VirtualList label="Lines" className="diff" items={lines} keyOf={(_, index) => String(index)} height={21} measured>
      {(line) => <Line line={line} />}
    </VirtualList>
  );
}

function Line({ line }: { line: DiffLine }) {
  return (
    <div className={`diff-line ${line.kind}`}>
      <span className="diff-number">{line.old}</span>
      <span className="diff-number">{line.new}</span>
      <span className="diff-sign" aria-hidden="true">
        {SIGNS[line.kind]}
      </span>
      {WORDS[line.kind] && <span className="sr-only">{WORDS[line.kind]}: </span>}
      <code className="wrap" data-row tabIndex={-1}>
        {plainText(line.text) || " "}
      </code>
    </div>
  );
}
