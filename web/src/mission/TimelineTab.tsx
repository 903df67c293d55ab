import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import type { MissionDetails } from "../api/contract";
import { eventContentQuery, eventsQuery, type TimelineLine } from "../api/logQueries";
import { Button } from "../design/Button";
import { Select } from "../design/Field";
import { EmptyState, Loaded } from "../design/states";
import { VirtualList } from "../design/VirtualList";
import { clock, count, plainText } from "../format";
import { useNow } from "../useNow";
import { useTail } from "./useTail";

const QUIET = "A technical step without words.";

export default function TimelineTab({ mission }: { mission: MissionDetails }) {
  const query = useInfiniteQuery(eventsQuery(mission.mission));
  useTail(mission.mission, query);
  const [step, setStep] = useState("");
  const [all, setAll] = useState(false);
  const events = useMemo(() => query.data?.pages.flatMap((page) => page.events) ?? [], [query.data]);
  const steps = useMemo(() => [...new Set(events.flatMap((event) => event.step ?? []))], [events]);
  const shown = useMemo(() => events.filter((event) => (step === "" || event.step === step) && (all || event.text !== "")), [events, step, all]);
  return (
    <Loaded query={query} label="Loading events">
      {() => (
        <div className="stack">
          <div className="row timeline-tools">
            <Select
              label="Step"
              value={step}
              onChange={setStep}
              options={[{ value: "", label: "All steps" }, ...steps.map((name) => ({ value: name, label: name }))]}
            />
            <label className="row">
              <input type="checkbox" checked={all} onChange={(event) => setAll(event.target.checked)} /> Technical events too
            </label>
            <span className="soft numbers" role="status">
              {count(shown.length, "event")}
            </span>
            <Button onClick={() => window.scrollTo({ top: document.body.scrollHeight })}>To the latest</Button>
          </div>
          {shown.length === 0 ? (
            <EmptyState title="Nothing has happened yet." />
          ) : (
            <VirtualList label="Events" className="timeline" items={shown} keyOf={seqOf} height={34} measured>
              {(event) => <Line mission={mission.mission} event={event} />}
            </VirtualList>
          )}
        </div>
      )}
    </Loaded>
  );
}

const seqOf = (event: TimelineLine) => String(event.seq);

function Line({ mission, event }: { mission: string; event: TimelineLine }) {
  const now = useNow();
  const [open, setOpen] = useState(false);
  return (
    <details className="timeline-line" onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary data-row>
        <time className="numbers soft" dateTime={event.time} title={event.time}>
          {clock(event.time, now)}
        </time>
        <span className="wrap">{plainText(event.text) || <span className="soft">{QUIET}</span>}</span>
        <span className="mono soft small">{event.type}</span>
      </summary>
      {open && <Content mission={mission} seq={event.seq} />}
    </details>
  );
}

function Content({ mission, seq }: { mission: string; seq: number }) {
  return (
    <Loaded query={useQuery(eventContentQuery(mission, seq))} label="Loading the event">
      {(payload) =>
        payload === null ? (
          <p className="soft">Its content is too long for this page, or was erased: chargehand mission log {mission} --json shows the stored part.</p>
        ) : (
          <pre className="code">{plainText(JSON.stringify(payload, null, 2))}</pre>
        )
      }
    </Loaded>
  );
}
