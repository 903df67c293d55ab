import { useEffect, useRef } from "react";
import { ApiError, get, put } from "../../api/client";
import type { ReviewDecisions } from "../../api/contract";
import { keepBase, mergeNotes, readBase, sameNotes, type Notes } from "./notes";

const QUIET_MS = 600;

/**
 * Keeps notes equal to the server's: read once, then written a moment after each change. Where another tab was faster
 * both are merged and `onMerged` is told. Who reaches no server goes on with what is here.
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
        // What is decided while a request is under way comes along with the next one.
        while (known.current !== null && !sameNotes(known.current.base, latest.current)) await write(known.current.revision);
      } catch {
        // It stays in this browser, and goes along with the next change.
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
