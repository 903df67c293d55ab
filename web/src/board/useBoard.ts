import { useInfiniteQuery, useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useRef } from "react";
import type { MissionPage } from "../api/contract";
import { fetchMissionPage, missionsQuery, type MissionFilter } from "../api/queries";
import { useFeedBatches } from "../feed/hooks";
import { mergePage, stalePages } from "./rows";

/** The missions of a filter, kept up to date by the feed: only pages that show a changed mission are reloaded. */
export function useBoard(filter: MissionFilter) {
  const client = useQueryClient();
  const options = missionsQuery(filter);
  const query = useInfiniteQuery({ ...options, placeholderData: (before) => before });
  const waiting = useRef(new Set<string>());
  const busy = useRef(false);

  const refresh = async () => {
    if (busy.current) return;
    busy.current = true;
    try {
      while (waiting.current.size > 0) {
        const changed = waiting.current;
        waiting.current = new Set();
        await refreshPages(changed);
      }
    } catch {
      // The server is unreachable: the feed shows it, and everything is reloaded once the server is back.
      void client.invalidateQueries({ queryKey: options.queryKey });
    } finally {
      busy.current = false;
    }
  };

  const refreshPages = async (changed: ReadonlySet<string>) => {
    const held = client.getQueryData<Pages>(options.queryKey);
    if (!held) return;
    for (const index of stalePages(held.pages, changed)) {
      const fresh = await fetchMissionPage(filter, held.pageParams[index] ?? null);
      client.setQueryData<Pages>(options.queryKey, (now) => now && withPage(now, index, fresh, changed));
    }
  };

  useFeedBatches(({ events }) => {
    for (const { mission } of events) waiting.current.add(mission);
    void refresh();
  });
  return query;
}

type Pages = InfiniteData<MissionPage, string | null>;

function withPage(held: Pages, index: number, fresh: MissionPage, changed: ReadonlySet<string>): Pages {
  const pages = held.pages.map((page, at) => {
    if (at === index) return mergePage(page, fresh, changed);
    return { ...page, counts: fresh.counts };
  });
  return { ...held, pages };
}
