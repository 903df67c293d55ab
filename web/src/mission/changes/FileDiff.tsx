import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { fileChangeQuery } from "../../api/queries";
import { Button } from "../../design/Button";
import { EmptyState, Loaded } from "../../design/states";
import { VirtualList } from "../../design/VirtualList";
import { plainText } from "../../format";
import { readStored, writeStored } from "../../storage";
import { useNarrow } from "../../useNarrow";
import { Code, useColours } from "./Code";
import type { Word } from "./colours";
import { pairLines, type PairedLine } from "./pairs";
import { readPatch, type DiffLine } from "./patch";

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
        {({ patch }) => <Patch patch={patch} path={path} split={split && !narrow} />}
      </Loaded>
    </section>
  );
}

const SIGNS = { added: "+", removed: "−", context: " ", hunk: "", note: "" } as const;
const WORDS = { added: "added", removed: "removed", context: "", hunk: "", note: "" } as const;
type Words = ((line: string) => Word[]) | null;

function Patch({ patch, path, split }: { patch: string; path: string; split: boolean }) {
  const words = useColours(path);
  const lines = useMemo(() => readPatch(patch), [patch]);
  const pairs = useMemo(() => (split ? pairLines(lines) : []), [lines, split]);
  if (lines.length === 0) return <EmptyState title="Its lines are the same." />;
  return split ? (
    <VirtualList key="split" label="Lines, side by side" className="diff" items={pairs} keyOf={(_, index) => String(index)} height={21} measured>
      {(pair) => <Pair pair={pair} words={words} />}
    </VirtualList>
  ) : (
    <VirtualList key="unified" label="Lines" className="diff" items={lines} keyOf={(_, index) => String(index)} height={21} measured>
      {(line) => <Line line={line} words={words} />}
    </VirtualList>
  );
}

function Line({ line, words }: { line: DiffLine; words: Words }) {
  return (
    <div className={`diff-line ${line.kind}`}>
      <span className="diff-number">{line.old}</span>
      <span className="diff-number">{line.new}</span>
      <Content line={line} words={words} />
    </div>
  );
}

function Pair({ pair, words }: { pair: PairedLine; words: Words }) {
  if (pair.over) return <Line line={pair.over} words={null} />;
  return (
    <div className="diff-pair">
      {(["old", "new"] as const).map((side) => {
        const line = pair[side];
        return (
          <div key={side} className={`diff-line half ${line?.kind ?? "absent"}`}>
            <span className="diff-number">{line?.[side]}</span>
            {line && <Content line={line} words={words} />}
          </div>
        );
      })}
    </div>
  );
}

function Content({ line, words }: { line: DiffLine; words: Words }) {
  return (
    <>
      <span className="diff-sign" aria-hidden="true">
        {SIGNS[line.kind]}
      </span>
      {WORDS[line.kind] && <span className="sr-only">{WORDS[line.kind]}: </span>}
      <Code text={line.text} words={line.kind === "hunk" || line.kind === "note" ? null : words} />
    </>
  );
}
