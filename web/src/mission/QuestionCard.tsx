import { useQueryClient } from "@tanstack/react-query";
import { useState, type SyntheticEvent } from "react";
import { ApiError, post } from "../api/client";
import type { Question } from "../api/contract";
import { missionPath } from "../api/queries";
import { Button } from "../design/Button";
import { TextArea } from "../design/Field";
import { Icon } from "../design/Icon";
import { toast } from "../design/Toasts";
import { plainText } from "../format";
import { useCanAct } from "./useCanAct";

const SETTLED = new Set(["question_answered", "question_expired", "no_question"]);

/** A mission's question, answered in place; says so if another person answered first. */
export function QuestionCard({ mission, question }: { mission: string; question: Question }) {
  const client = useQueryClient();
  const canAct = useCanAct();
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");

  const answer = async (words: string) => {
    setBusy(true);
    setError("");
    try {
      await post(`${missionPath(mission)}/answer`, { text: words, question: question.id });
      toast("Answered. The mission continues.");
    } catch (failure) {
      const words = failure instanceof ApiError ? `${failure.message} ${failure.hint}`.trim() : String(failure);
      // If another person answered first, the question and this card disappear in a moment.
      if (failure instanceof ApiError && SETTLED.has(failure.code)) toast(words, true);
      else setError(words);
    }
    setBusy(false);
    await client.invalidateQueries({ queryKey: ["mission", mission] });
  };
  const submit = (event: SyntheticEvent) => {
    event.preventDefault();
    if (text.trim()) void answer(text.trim());
  };
  return (
    <section className="card warn stack question" aria-labelledby={`question-${question.id}`}>
      <h2 id={`question-${question.id}`} className="wrap">
        <Icon name="waiting" /> {plainText(question.text)}
      </h2>
      <Deadline question={question} />
      {canAct && question.options.length > 0 && (
        <div className="row" role="group" aria-label="Options">
          {question.options.map((option) => (
            <Button key={option} disabled={busy} onClick={() => void answer(option)}>
              {plainText(option)}
            </Button>
          ))}
        </div>
      )}
      {question.meanings.length > 0 && (
        <ul className="soft wrap">
          {question.options.map((option, number) => (
            <li key={option}>
              {plainText(option)}: {plainText(question.meanings[number] ?? "")}
            </li>
          ))}
        </ul>
      )}
      {canAct && !question.closed && (
        <form className="stack" onSubmit={submit}>
          <TextArea label="Answer in your own words" rows={2} value={text} onChange={(event) => setText(event.target.value)} />
          <div>
            <Button type="submit" kind="primary" busy={busy} disabled={!text.trim()}>
              Answer
            </Button>
          </div>
        </form>
      )}
      {!canAct && <p className="soft">Your role cannot answer it.</p>}
      {error && (
        <p role="alert" className="tone-bad wrap">
          {error}
        </p>
      )}
    </section>
  );
}

function Deadline({ question }: { question: Question }) {
  if (!question.expires) return null;
  return (
    <p className="soft">
      To be answered until {new Date(question.expires).toLocaleString()};{" "}
      {question.default ? `“${plainText(question.default)}” counts then.` : "the mission needs a person then."}
    </p>
  );
}
