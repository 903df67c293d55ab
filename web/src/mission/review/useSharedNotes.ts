import { useEffect, useRef } from "react";
import { ApiError, get, put } from "../../api/client";
import type { ReviewDecisions } from "../../api/contract";
import { keepBase, mergeNotes, readBase, sameNotes, type Notes } from "./notes";

const QUIET_MS = 600;

/**
 * Keeps notes in sync with the server: reads them once, then writes them shortly after each change. If another tab
 * wrote first, it merges both and calls `onMerged`. Without a server the review continues with the local notes.
 */
export function useSharedNotes(mission: string, tree: string, here: Notes, onMerged: (notes: Notes) => void): void {
  const known = useRef<{ revision: number; base: Notes } | null>(null);
  const latest = useRef(here);
  const busy = useRef(false);
  useEffect(() => {
    latest.current = here;
    const path = `/missions/${encodeURIComponent(mission)}/review/decisions`;
    const timer = setTimeout(() => void exchange(), known.current === null ? 0 : QUIET_MS);
    return () => clearTimeout(timer);

    async function exchange(): Promise<void> {
      if (busy.current) return;
      busy.current = true;
      try {
        if (known.current === null) await take();
        // Decisions made during a request are sent with the next one.
        while (known.current !== null && !sameNotes(known.current.base, latest.current)) await write(known.current.revision);
      } catch {
        // The notes stay in this browser and are sent with the next change.
      } finally {
        busy.current = false;
      }
    }

    function know(revision: number, base: Notes): void {
      known.current = { revision, base };
      keepBase(mission, base);
    }

    async function take(): Promise<void> {
      const there = await get<ReviewDecisions>(path);
      const merged = mergeNotes(known.current?.base ?? readBase(mission), latest.current, there);
      know(there.revision, { decided: there.decided, comments: there.comments });
      if (!sameNotes(merged, latest.current)) {
        latest.current = merged;
        onMerged(merged);
      }
    }

    async function write(revision: number): Promise<void> {
      const { decided, comments } = latest.current;
      try {
        const kept = await put<ReviewDecisions>(path, { revision, tree, decided, comments });
        know(kept.revision, { decided, comments });
      } catch (failure) {
        if (!(failure instanceof ApiError) || failure.status !== 412) throw failure;
        await take();
      }
    }
  }, [mission, tree, here, onMerged]);
}
