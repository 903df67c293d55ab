import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { FileDifference } from "../../api/contract";
import { fileChangeQuery } from "../../api/queries";
import { Button } from "../../design/Button";
import { EmptyState, Loaded } from "../../design/states";
import { VirtualList } from "../../design/VirtualList";
import { plainText } from "../../format";
import { readStored, writeStored } from "../../storage";
import { useNarrow } from "../../useNarrow";
import { Code } from "./Code";
import type { Colours } from "./colours";
import { pairLines, type PairedLine } from "./pairs";
import { readPatch, type DiffLine } from "./patch";
import { useColours } from "./useColours";

interface Props {
  mission: string;
  path: string;
  from: string;
  to: string;
}

const KEY = "chargehand.diff";

export function FileDiff({ mission, path, from, to }: Props) {
  const query = useQuery(fileChangeQuery(mission, path, from, to));
  const [split, setSplit] = useState(() => readStored(KEY) === "split");
  const narrow = useNarrow();
  const choose = (next: boolean) => {
    setSplit(next);
    writeStored(KEY, next ? "split" : null);
  };
  return (
    <section aria-label={`Changes of ${path}`} className="file-diff">
      <div className="row file-name">
        <h2 className="mono small wrap">{plainText(path)}</h2>
        {!narrow && (
          <Button kind="quiet" aria-pressed={split} onClick={() => choose(!split)}>
            Side by side
          </Button>
        )}
      </div>
      <Loaded query={query} label={`Loading the changes of ${path}`}>
        {(file) => <Patch file={file} path={path} split={split && !narrow} />}
      </Loaded>
    </section>
  );
}

interface PatchProps {
  file: FileDifference;
  path: string;
  split: boolean;
}

function Patch({ file, path, split }: PatchProps) {
  const lines = useMemo(() => readPatch(file.patch), [file.patch]);
  const colours = useColours(path, lines, file);
  const pairs = useMemo(() => (split ? pairLines(lines) : []), [lines, split]);
  if (lines.length === 0) return <EmptyState title="Its lines are the same." />;
  return split ? (
    <VirtualList key="split" label="Lines, side by side" className="diff" items={pairs} height={21} measured>
      {(pair) => <Pair pair={pair} colours={colours} />}
    </VirtualList>
  ) : (
    <VirtualList key="unified" label="Lines" className="diff" items={lines} height={21} measured>
      {(line) => <Line line={line} colours={colours} />}
    </VirtualList>
  );
}

function Line({ line, colours }: { line: DiffLine; colours: Colours | null }) {
  return (
    <div className={`diff-line ${line.kind}`}>
      <span className="diff-number">{line.old}</span>
      <span className="diff-number">{line.new}</span>
      <Code line={line} colours={colours} />
    </div>
  );
}

function Pair({ pair, colours }: { pair: PairedLine; colours: Colours | null }) {
  if (pair.over) return <Line line={pair.over} colours={null} />;
  return (
    <div className="diff-pair">
      {(["old", "new"] as const).map((side) => {
        const line = pair[side];
        return (
          <div key={side} className={`diff-line half ${line?.kind ?? "absent"}`}>
            <span className="diff-number">{line?.[side]}</span>
            {line && <Code line={line} side={side} colours={colours} />}
          </div>
        );
      })}
    </div>
  );
}
