import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useRef } from "react";
import type { LineCount } from "../../api/contract";
import { plainText } from "../../format";

interface Props {
  files: readonly LineCount[];
  chosen: string;
  onChoose: (path: string) => void;
}

/** The changed files, however many; only visible ones are drawn. */
export function FileList({ files, chosen, onChoose }: Props) {
  const place = useRef<HTMLElement>(null);
  // eslint-disable-next-line react-hooks/incompatible-library
  const virtual = useVirtualizer({ count: files.length, getScrollElement: () => place.current, estimateSize: () => 33, overscan: 20 });
  const at = files.findIndex(({ path }) => path === chosen);
  useEffect(() => {
    if (at > 0) virtual.scrollToIndex(at);
  }, [virtual, at]);
  return (
    <nav aria-label="Changed files" className="file-list" ref={place}>
      <ul className="virtual" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map(({ index, key, start }) => {
          const { path, added, removed } = files[index] as LineCount;
          return (
            <li key={key} ref={virtual.measureElement} data-index={index} style={{ transform: `translateY(${start}px)` }}>
              <button type="button" aria-current={path === chosen ? "true" : undefined} onClick={() => onChoose(path)}>
                <span className="mono wrap">{plainText(path)}</span>
                <Counts added={added} removed={removed} />
              </button>
            </li>
          );
        })}
      </ul>
    </nav>
  );
}

function Counts({ added, removed }: { added: number | null; removed: number | null }) {
  if (added === null && removed === null) return <span className="numbers small">binary</span>;
  return (
    <span className="numbers small">
      <span className="tone-good">+{added ?? 0}</span> <span className="tone-bad">−{removed ?? 0}</span>
    </span>
  );
}
