import type { InfiniteData, UseInfiniteQueryResult } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { useFeedBatches } from "../feed/hooks";

type Log = UseInfiniteQueryResult<InfiniteData<{ next: number | null }>>;

/** Reads a log to its end, page by page, and then new lines while it is shown. */
export function useTail(mission: string, query: Log): void {
  const [behind, setBehind] = useState(false);
  useFeedBatches(({ events }) => {
    if (events.some((event) => event.mission === mission)) setBehind(true);
  });
  const { data, isFetching, isError, fetchNextPage } = query;
  const more = behind || (data?.pages.at(-1)?.next ?? null) !== null;
  useEffect(() => {
    if (!more || !data || isFetching || isError) return;
    // eslint-disable-next-line react-hooks/set-state-in-effect
    setBehind(false);
    void fetchNextPage({ cancelRefetch: false });
  }, [more, data, isFetching, isError, fetchNextPage]);
}
