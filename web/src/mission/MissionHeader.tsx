import { Link } from "@tanstack/react-router";
import type { MissionDetails } from "../api/contract";
import { Status } from "../design/Status";
import { Icon } from "../design/Icon";
import { Message } from "../design/Message";
import { baseName, duration, money, plainText } from "../format";
import { useNow } from "../useNow";
import { Actions } from "./Actions";
import { elapsed, isOpen } from "./facts";
import { NextCommands } from "./NextCommands";
import { QuestionCard } from "./QuestionCard";
import { SettledQuestion } from "./SettledQuestion";

export function MissionHeader({ mission, title }: { mission: MissionDetails; title: string }) {
  const { question, cause } = mission;
  return (
    <header className="stack">
      <div className="row spread mission-top">
        <div className="row">
          <Status status={mission.status} rolledBack={mission.rolled_back} />
          <span className="mono soft">{mission.mission}</span>
          <span className="soft">{baseName(mission.repository)}</span>
          <Live mission={mission} />
        </div>
        <Actions mission={mission} />
      </div>
      <h1 className="wrap clamp" title={title}>
        {title}
      </h1>
      {mission.parent !== null && (
        <p>
          Task <span className="mono">{mission.task}</span> of{" "}
          <Link to="/missions/$id/$tab" params={{ id: mission.parent, tab: "plan" }}>
            {mission.parent}
          </Link>
        </p>
      )}
      {isOpen(question) && <QuestionCard key={question.id} mission={mission.mission} question={question} />}
      <SettledQuestion mission={mission.mission} />
      <Waits mission={mission} />
      {mission.reasons.length > 0 && !isOpen(question) && (
        <div className={cause ? `card stack ${mission.status === "waiting" ? "warn" : "bad"}` : "card stack"}>
          {mission.reasons.map((reason) => (
            <p key={`${reason.code} ${reason.message}`} className="wrap">
              <span className="mono soft">{reason.code}</span> <Message text={reason.message} />
            </p>
          ))}
          {cause && (
            <p className="soft wrap">
              <strong>Remedy:</strong> <Message text={cause.remedy} />
            </p>
          )}
        </div>
      )}
      <NextCommands commands={mission.next} />
    </header>
  );
}

function Live({ mission }: { mission: MissionDetails }) {
  const now = useNow();
  return (
    <span className="numbers soft">
      {money(mission.cost_usd, mission.cost_known)} · {duration(elapsed(mission, now))}
    </span>
  );
}

function Waits({ mission }: { mission: MissionDetails }) {
  return (
    <>
      {/* A plan that waits for its tasks repeats this in one long sentence. */}
      {mission.waits && mission.waiting.length === 0 && (
        <p className="card warn">
          <Icon name="waiting" /> Waits: <Message text={mission.waits.message} />
        </p>
      )}
      {mission.waiting.map((task) => (
        <p key={task.mission} className="card warn wrap">
          Task <span className="mono">{task.task}</span> needs {task.needs === "resume" ? "to be resumed" : `an ${task.needs}`}:{" "}
          <Link to="/missions/$id" params={{ id: task.mission }}>
            {plainText(task.message)}
          </Link>
        </p>
      ))}
    </>
  );
}
