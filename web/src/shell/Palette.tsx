import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useDeferredValue, useId, useState, type KeyboardEvent } from "react";
import { fetchMissionPage } from "../api/queries";
import { Kbd } from "../design/Badge";
import { Dialog } from "../design/Dialog";
import { lookOf } from "../design/Status";
import { firstLine, plainText } from "../format";
import type { Command } from "./commands";

interface Entry {
  key: string;
  title: string;
  detail: string;
  keys: string;
  run: () => void;
}

export function Palette({ commands, onClose }: { commands: readonly Command[]; onClose: () => void }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const entries = useEntries(text, commands);
  const list = useId();
  const active = Math.min(chosen, entries.length - 1);

  const run = (entry: Entry | undefined) => {
    if (!entry) return;
    onClose();
    entry.run();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setChosen(Math.min(active + 1, entries.length - 1));
    else if (event.key === "ArrowUp") setChosen(Math.max(active - 1, 0));
    else if (event.key === "Enter") run(entries[active]);
    else return;
    event.preventDefault();
  };

  return (
    <Dialog title="Find a mission or a command" onClose={onClose}>
      <input
        className="input"
        role="combobox"
        aria-label="Mission or command"
        aria-expanded
        aria-controls={list}
        aria-activedescendant={active >= 0 ? `${list}-${active}` : undefined}
        autoComplete="off"
        // A palette is opened to write in it.
        // eslint-disable-next-line jsx-a11y/no-autofocus
        autoFocus
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setChosen(0);
        }}
        onKeyDown={press}
      />
      <div id={list} role="listbox" aria-label="Results" className="palette">
        {entries.map((entry, index) => (
          // The input keeps the focus and has the keys; the mouse is the other way in.
          // eslint-disable-next-line jsx-a11y/click-events-have-key-events
          <div
            key={entry.key}
            id={`${list}-${index}`}
            role="option"
            tabIndex={-1}
            aria-selected={index === active}
            onClick={() => run(entry)}
          >
            <span className="cut">{entry.title}</span>
            {entry.detail && <span className="soft small">{entry.detail}</span>}
            {entry.keys && <Kbd>{entry.keys}</Kbd>}
          </div>
        ))}
      </div>
      {entries.length === 0 && <p className="soft">Nothing matches.</p>}
    </Dialog>
  );
}

function useEntries(text: string, commands: readonly Command[]): Entry[] {
  const navigate = useNavigate();
  const wanted = useDeferredValue(text.trim());
  const found = useQuery({
    queryKey: ["palette", wanted],
    queryFn: ({ signal }) => fetchMissionPage({ q: wanted }, null, signal),
    enabled: wanted.length >= 2,
    placeholderData: (before) => before,
  });
  const missions = wanted.length >= 2 ? (found.data?.missions ?? []) : [];
  return [
    ...commands
      .filter(({ title }) => title.toLowerCase().includes(text.trim().toLowerCase()))
      .map((command) => ({ ...command, key: command.title, detail: "" })),
    ...missions.slice(0, 12).map((mission) => ({
      key: mission.mission,
      title: firstLine(plainText(mission.request ?? mission.mission)),
      detail: `${lookOf(mission.status).label} · ${mission.mission}`,
      keys: "",
      run: () => void navigate({ to: "/missions/$id", params: { id: mission.mission } }),
    })),
  ];
}
