import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, post } from "../../api/client";
import type { Accepted, MissionDocument, RestoreDocument } from "../../api/contract";
import { KeyedRequests } from "../../api/keyed";
import { missionPath } from "../../api/queries";
import { toast } from "../../design/Toasts";
import type { TakenBack } from "./finish";

export interface Ending {
  promote: boolean;
  /** The message to the agent, or "". */
  message: string;
  way: "send" | "continue" | null;
  reason: string;
}

/**
 * Takes back the rejected parts, promotes the rest and sends the agent the message, each only on the tree that the
 * person saw.
 */
export function useFinish(mission: string, seen: string, back: TakenBack, plan: RestoreDocument | undefined, onDone: (told: boolean) => void) {
  const client = useQueryClient();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  // The tree after the restore: if a later step fails, the next try resumes from it.
  const [left, setLeft] = useState<string | null>(null);
  const [requests] = useState(() => new KeyedRequests());
  const path = missionPath(mission);
  const finish = async ({ promote, message, way, reason }: Ending) => {
    setBusy(true);
    setError("");
    const done: string[] = [];
    try {
      let tree = left ?? seen;
      if (left === null && back.files.length + back.hunks.length > 0) {
        tree = await takeBack(path, back, plan);
        setLeft(tree);
        done.push("The rejected hunks are taken back.");
      }
      let follows = false;
      if (promote) {
        const made = await post<MissionDocument | Accepted>(`${path}/promote`, { tree, reason });
        follows = "accepted" in made;
        done.push(follows ? "Its promotion is under way." : "It is promoted.");
      }
      if (message && way === "send") {
        await requests.post(`${path}/send`, { text: message });
        done.push("Your message is sent; the mission says when the agent has it.");
      } else if (message && way === "continue") {
        if (follows) throw new Error("Your message was not sent: continue the mission with it once it is promoted.");
        await requests.post(`${path}/continue`, { request: message });
        done.push("Another round begins with your message.");
      }
      toast(done.join(" "));
      onDone(message !== "");
    } catch (failure) {
      const why = failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure);
      setError([...done, why].join(" "));
    } finally {
      setBusy(false);
      await client.invalidateQueries({ queryKey: ["mission", mission] });
    }
  };
  return { finish, busy, error, left };
}

async function takeBack(path: string, back: TakenBack, plan: RestoreDocument | undefined): Promise<string> {
  const made = await post<RestoreDocument | Accepted>(`${path}/restore`, { checkpoint: "base", ...back });
  if ("accepted" in made) throw new Error("The hunks are still being taken back. The change is then loaded again: review it before you promote it.");
  if (made.plan.result !== plan?.plan.result) {
    throw new Error("The mission changed meanwhile: the hunks taken back differ from those you saw. Review it again before you promote it.");
  }
  return made.plan.result;
}
