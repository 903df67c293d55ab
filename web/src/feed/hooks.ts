import { useQueryClient, type QueryClient } from "@tanstack/react-query";
import { useEffect, useEffectEvent, useSyncExternalStore } from "react";
import { Feed, type Batch, type FeedState } from "./feed";
import { Refresher } from "./refresher";
import { SharedStream } from "./sharing";

export const feed = new Feed(SharedStream.isPossible() ? new SharedStream() : null);

/** Follows the feed while its caller is mounted, and invalidates the queries that its events make stale. */
export function useFeed(): void {
  const client = useQueryClient();
  useEffect(() => {
    const stop = new AbortController();
    const refresher = new Refresher((missions) =>
      Promise.all(missions.map((mission) => client.invalidateQueries({ queryKey: ["mission", mission] }))),
    );
    const leave = feed.onBatch((batch) => markOld(client, batch, refresher));
    void feed.follow(stop.signal);
    return () => {
      leave();
      stop.abort();
    };
  }, [client]);
}

/** Calls `listener` with each batch of events; `reset` means that some may have been missed. */
export function useFeedBatches(listener: (batch: Batch) => void): void {
  const latest = useEffectEvent(listener);
  useEffect(() => feed.onBatch((batch) => latest(batch)), []);
}

export function useFeedState(): FeedState {
  return useSyncExternalStore(feed.onState, () => feed.state);
}

// Lists and logs update themselves page by page; see `useBoard` and `useTail`.
function markOld(client: QueryClient, batch: Batch, refresher: Refresher): void {
  if (batch.reset) {
    void client.invalidateQueries({ predicate: ({ queryKey }) => queryKey[0] !== "session" });
    return;
  }
  void refresher.add(batch.events.map((event) => event.mission));
  if (batch.events.some((event) => event.type.startsWith("question."))) {
    void client.invalidateQueries({ queryKey: ["questions"] });
  }
}
