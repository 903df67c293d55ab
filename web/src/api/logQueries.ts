/** Queries on the log of one mission, line by line. */
import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { get } from "./client";
import type { EventLine, EventPage, TranscriptPage } from "./contract";
import { missionPath, search } from "./queries";

const LOG_PAGE = 500;

const fetchEvents = (mission: string, after: number, limit: number, signal: AbortSignal) =>
  get<EventPage>(`${missionPath(mission)}/events?${search({ after, limit })}`, signal);

/**
 * An event without its content, which is most of its size: a page that follows a mission for hours keeps every
 * line.
 */
export type TimelineLine = Pick<EventLine, "seq" | "time" | "type" | "text" | "step">;

// A log only grows: loaded pages stay, and new lines arrive as another page.
export const eventsQuery = (mission: string) =>
  infiniteQueryOptions({
    queryKey: ["log", mission, "events"],
    queryFn: async ({ pageParam, signal }) => {
      const page = await fetchEvents(mission, pageParam, LOG_PAGE, signal);
      const events = page.events.map(({ seq, time, type, text, step }): TimelineLine => ({ seq, time, type, text, step }));
      return { events, next: page.next };
    },
    initialPageParam: 0,
    getNextPageParam: (last, _pages, after) => last.next ?? last.events.at(-1)?.seq ?? after,
    staleTime: Infinity,
  });

/**
 * The content of one event, `null` if it is too long or erased. Dropped from the cache soon after it is closed.
 */
export const eventContentQuery = (mission: string, seq: number) =>
  queryOptions({
    queryKey: ["log", mission, "event", seq],
    queryFn: async ({ signal }) => (await fetchEvents(mission, seq - 1, 1, signal)).events[0]?.payload ?? null,
    staleTime: Infinity,
    gcTime: 60_000,
  });

export const transcriptQuery = (mission: string) =>
  infiniteQueryOptions({
    queryKey: ["log", mission, "transcript"],
    queryFn: ({ pageParam, signal }) =>
      get<TranscriptPage>(`${missionPath(mission)}/transcript?${search({ after: pageParam, limit: LOG_PAGE })}`, signal),
    initialPageParam: 0,
    getNextPageParam: (last) => last.next ?? last.end,
    staleTime: Infinity,
  });
