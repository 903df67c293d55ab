import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { ApiError, post } from "../../api/client";
import type { FeedbackDocument, MissionDetails } from "../../api/contract";
import { missionPath } from "../../api/queries";
import { Button } from "../../design/Button";
import { TextField } from "../../design/Field";
import { toast } from "../../design/Toasts";
import { ago, plainText, shortCommit } from "../../format";
import { useNow } from "../../useNow";
import { useCanAct } from "../useCanAct";

const FATES = {
  merged: "is on",
  survived: "is still on",
  reverted: "was reverted on",
  rewritten: "is no longer on",
  rolled_back: "was rolled back",
};

/** The fates of a mission's promotions and people's words on its result, with buttons to give or retract one. */
export function FeedbackCard({ mission }: { mission: MissionDetails }) {
  const client = useQueryClient();
  const now = useNow();
  const canAct = useCanAct();
  const [note, setNote] = useState("");
  const [place, setPlace] = useState("");
  const [busy, setBusy] = useState(false);

  const send = async (body: { word?: "good" | "bad"; note?: string; hunk?: string | null; retract?: boolean }) => {
    setBusy(true);
    try {
      const { warning } = await post<FeedbackDocument>(`${missionPath(mission.mission)}/feedback`, body);
      toast(warning ?? (body.retract ? "Retracted." : "Recorded: later choices learn from it."), warning !== null);
      setNote("");
      setPlace("");
    } catch (failure) {
      toast(failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure), true);
    }
    setBusy(false);
    await client.invalidateQueries({ queryKey: ["mission", mission.mission] });
  };
  return (
    <section className="card stack" aria-label="Was the result good?">
      <h2>Was the result good?</h2>
      <ul>
        {mission.promotions.map(({ commit, fate, branch }) => (
          <li key={commit} className="wrap">
            <code>{shortCommit(commit)}</code> {fate ? `${FATES[fate]} ${plainText(branch)}` : "was promoted; whether it lasts is not known yet"}
          </li>
        ))}
        {mission.feedback.map(({ identity, attempt, place: line, good, note: words, time }) => (
          <li key={identity + attempt + line} className="wrap">
            <strong>{good ? "Good" : "Bad"}</strong> says {plainText(identity)} <span className="soft">{ago(time, now)}</span>{" "}
            {line && <code>{plainText(line)}</code>} {plainText(words)}
          </li>
        ))}
      </ul>
      {canAct && (
        <>
          <TextField label="Why" value={note} maxLength={2000} onChange={(event) => setNote(event.target.value)} />
          <TextField label="Place" hint="A line of its change if the word is about one, such as src/app.py:12." value={place} onChange={(event) => setPlace(event.target.value)} />
          <div className="row">
            <Button disabled={busy} onClick={() => void send({ word: "good", note, hunk: place.trim() || null })}>
              Good
            </Button>
            <Button disabled={busy} onClick={() => void send({ word: "bad", note, hunk: place.trim() || null })}>
              Bad
            </Button>
            {mission.feedback.length > 0 && (
              <Button disabled={busy} onClick={() => void send({ retract: true })}>
                Retract mine
              </Button>
            )}
          </div>
        </>
      )}
    </section>
  );
}
