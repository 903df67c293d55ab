import { useSearch } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { EmptyState, Loaded } from "../design/states";
import { count } from "../format";
import { useTitle } from "../useTitle";
import "./board.css";
import { Filters } from "./Filters";
import { isEmpty } from "./filter";
import { MissionList } from "./MissionList";
import { boardRows } from "./rows";
import { useBoard } from "./useBoard";

export function BoardPage() {
  const filter = useSearch({ from: "/app/" });
  const query = useBoard(filter);
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  const pages = query.data?.pages;
  const rows = useMemo(() => boardRows(pages ?? [], toggled), [pages, toggled]);
  const counts = pages?.[0]?.counts ?? {};
  const needs = counts["waiting"] ?? 0;
  useTitle(needs > 0 ? `(${needs}) Board` : "Board");

  const toggle = (mission: string) => {
    const next = new Set(toggled);
    if (!next.delete(mission)) next.add(mission);
    setToggled(next);
  };
  return (
    <div className="stack">
      <h1 className="sr-only">Board</h1>
      <Filters filter={filter} counts={counts} />
      <p className="sr-only" role="status">
        {pages ? `${count(needs, "mission needs you", "missions need you")}.` : ""}
      </p>
      <Loaded query={query} label="Loading missions">
        {() =>
          rows.length > 0 ? (
            <>
              <Heads />
              <MissionList rows={rows} onToggle={toggle} onEnd={() => void (query.hasNextPage && query.fetchNextPage())} />
              {query.isFetchingNextPage && <p className="soft">Loading more…</p>}
            </>
          ) : (
            <Nothing filtered={!isEmpty(filter)} />
          )
        }
      </Loaded>
    </div>
  );
}

function Heads() {
  return (
    <div className="board-row board-heads soft small" aria-hidden="true">
      <span />
      <span>Status</span>
      <span>Mission</span>
      <span>Project</span>
      <span>Agent</span>
      <span className="board-cost">Cost</span>
      <span className="board-time">Time</span>
      <span className="board-updated">Updated</span>
    </div>
  );
}

function Nothing({ filtered }: { filtered: boolean }) {
  if (filtered) return <EmptyState title="No mission matches this filter." />;
  return (
    <EmptyState title="No missions yet">
      <p className="soft">
        Ask for something with “New mission”, or run <code>chargehand run "…"</code> in a repository.
      </p>
    </EmptyState>
  );
}
