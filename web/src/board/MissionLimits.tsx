import { useQuery } from "@tanstack/react-query";
import type { AgentList, ModelList, RoleList } from "../api/contract";
import { listQuery } from "../api/queries";
import { Select, TextArea, TextField } from "../design/Field";
import type { Breakpoint, Wish } from "./newMission";

interface Props {
  wish: Wish;
  problems: Partial<Record<keyof Wish, string>>;
  onChange: (part: Partial<Wish>) => void;
}

const BREAKPOINTS: readonly [Breakpoint, string][] = [
  ["plan", "once its plan is made"],
  ["step", "before each of its steps"],
  ["promote", "before its result is promoted"],
];
const AS_CONFIGURED = { value: "", label: "As configured" };

/** Chooses agent, model, role and limits of a mission; empty fields keep the configured values. */
export function MissionLimits({ wish, problems, onChange }: Props) {
  const of = `?project=${encodeURIComponent(wish.repo)}`;
  const agents = useQuery(listQuery<AgentList>(`agents${of}`)).data?.agents ?? [];
  const models = useQuery(listQuery<ModelList>(`models${of}`)).data?.models ?? [];
  const roles = useQuery(listQuery<RoleList>(`roles${of}`)).data?.roles ?? [];
  const choices = (entries: readonly { name: string }[]) => [AS_CONFIGURED, ...entries.map(({ name }) => ({ value: name, label: name }))];
  const text = (name: "agent" | "model" | "base" | "budget" | "time" | "attempts") => ({
    value: wish[name],
    error: problems[name],
    onChange: (event: { target: { value: string } }) => onChange({ [name]: event.target.value }),
  });
  const lines = (name: "checks" | "allow" | "forbid") => ({
    value: wish[name],
    rows: 2,
    hint: "One a line.",
    onChange: (event: { target: { value: string } }) => onChange({ [name]: event.target.value }),
  });
  return (
    <>
      <div className="form-grid">
        <TextField label="Agent" placeholder="as configured" suggestions={agents.map(({ name }) => name)} {...text("agent")} />
        <TextField label="Model" placeholder="as configured" suggestions={models.map(({ name }) => name)} {...text("model")} />
        <Select label="Role" value={wish.role} onChange={(role) => onChange({ role })} options={choices(roles)} />
        <TextField label="Budget in USD" inputMode="decimal" placeholder="as configured" {...text("budget")} />
        <TextField label="Time" placeholder="as configured, or 30m" {...text("time")} />
        <TextField label="Attempts" inputMode="numeric" placeholder="as configured" {...text("attempts")} />
      </div>
      <label className="row">
        <input type="checkbox" checked={wish.plan} onChange={(event) => onChange({ plan: event.target.checked })} />
        Let a planner split it into tasks first
      </label>
      <details>
        <summary>Checks and bounds</summary>
        <div className="stack">
          <TextField label="Base" placeholder="HEAD" {...text("base")} />
          <TextArea label="Checks in addition to the project's" {...lines("checks")} />
          <TextArea label="Only these paths may change" {...lines("allow")} />
          <TextArea label="These paths may not change" {...lines("forbid")} />
        </div>
      </details>
      <details>
        <summary>Breakpoints</summary>
        <fieldset className="stack breakpoints">
          <legend>It pauses, until you resume it,</legend>
          {BREAKPOINTS.filter(([place]) => place !== "plan" || wish.plan).map(([place, label]) => (
            <label key={place} className="row">
              <input
                type="checkbox"
                checked={wish.breakAt.includes(place)}
                onChange={({ target }) => onChange({ breakAt: target.checked ? [...wish.breakAt, place] : wish.breakAt.filter((other) => other !== place) })}
              />
              {label}
            </label>
          ))}
        </fieldset>
      </details>
    </>
  );
}
