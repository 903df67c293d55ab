import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, post } from "../../api/client";
import type { Accepted, ChangeReview, MissionDocument, RestoreDocument } from "../../api/contract";
import { missionPath } from "../../api/queries";
import { toast } from "../../design/Toasts";
import { wayToAgent, type TakenBack } from "./finish";

export interface Ending {
  promote: boolean;
  /** What the agent is told, "" for nothing. */
  message: string;
  reason: string;
}

/** Takes back what was rejected, tells the agent, and promotes what is left; each only as the person saw it. */
export function useFinish(review: ChangeReview, back: TakenBack, plan: RestoreDocument | undefined, onDone: () => void) {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const path = missionPath(review.mission);
  const finish = async ({ promote, message, reason }: Ending) => {
    setBusy(true);
    setError("");
    const done: string[] = [];
    try {
      let tree = review.tree;
      if (back.files.length + back.hunks.length > 0) {
        tree = await takeBack(path, back, plan);
        done.push("What you rejected is taken back.");
      }
      const way = wayToAgent(review.status);
      if (message && way.path === "send") {
        await post(`${path}/send`, { text: message });
        done.push("The agent has your comments.");
      }
      if (promote) {
        const made = await post<MissionDocument | Accepted>(`${path}/promote`, { tree, reason });
        done.push("accepted" in made ? "Its promotion is under way." : "It is promoted.");
      }
      if (message && way.path === "continue") {
        await post(`${path}/continue`, { request: message });
        done.push("Another round begins with your comments.");
      }
      toast(done.join(" "));
      onDone();
    } catch (failure) {
      const why = failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure);
      setError([...done, why].join(" "));
    } finally {
      setBusy(false);
      await client.invalidateQueries({ queryKey: ["mission", review.mission] });
    }
  };
  return { finish, busy, error };
}

async function takeBack(path: string, back: TakenBack, plan: RestoreDocument | undefined): Promise<string> {
  const made = await post<RestoreDocument>(`${path}/restore`, { checkpoint: "base", ...back });
  if (made.plan.result !== plan?.plan.result) {
    throw new Error("The mission changed meanwhile: what was taken back is not what you saw. Look at it again before you promote it.");
  }
  return made.plan.result;
}
