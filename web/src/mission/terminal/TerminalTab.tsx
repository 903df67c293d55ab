import { useEffect, useEffectEvent, useRef, useState } from "react";
import type { MissionDetails, TerminalRecord } from "../../api/contract";
import { Button } from "../../design/Button";
import { copyText } from "../../design/copyText";
import { useTheme } from "../../shell/theme";
import { Screen } from "./screen";
import { TerminalSocket, type SocketState } from "./socket";
import { TerminalText } from "./text";
import "./terminal.css";

type Status = Pick<TerminalRecord, "attempt" | "attempt_status" | "ended">;

export default function TerminalTab({ mission }: { mission: MissionDetails }) {
  const place = useRef<HTMLDivElement>(null);
  const screen = useRef<Screen | null>(null);
  const socket = useRef<TerminalSocket | null>(null);
  const theme = useTheme();
  const firstTheme = useRef(theme);
  const [following, setFollowing] = useState(true);
  const [state, setState] = useState<SocketState>("connecting");
  const [status, setStatus] = useState<Status | null>(null);
  const [kept, setKept] = useState(false);
  const [lines, setLines] = useState(0);

  const take = useEffectEvent((records: TerminalRecord[]) => {
    setLines((before) => before + records.filter(({ kind }) => kind === "line").length);
    if (records.some((record) => record.kept)) setKept(true);
    setStatus((before) => records.findLast(({ kind }) => kind === "status") ?? before);
  });
  useEffect(() => {
    if (!place.current) return;
    const shown = new Screen(place.current, firstTheme.current, () => setFollowing(false));
    const text = new TerminalText();
    const opened = new TerminalSocket(mission.mission, {
      onState: setState,
      onRecords: (records) => {
        shown.write(text.write(records));
        take(records);
      },
    });
    screen.current = shown;
    socket.current = opened;
    opened.open();
    return () => {
      opened.close();
      shown.dispose();
    };
  }, [mission.mission]);
  useEffect(() => screen.current?.setTheme(theme), [theme]);
  useEffect(() => screen.current?.follow(following), [following]);
  useEffect(() => socket.current?.wake(), [mission.status]);

  const copy = () =>
    void copyText(screen.current?.text() ?? "");
  return (
    <div className="stack">
      <div className="row terminal-tools">
        <Find screen={screen} />
        <Button aria-pressed={following} onClick={() => setFollowing(!following)}>
          {following ? "Stop following" : "Follow"}
        </Button>
        <Button onClick={copy}>Copy</Button>
        <span className="soft" role="status">
          {inWords(state, status, kept, lines)}
        </span>
      </div>
      <div ref={place} className="terminal-place" role="region" aria-label="Output of the mission" />
    </div>
  );
}

function inWords(state: SocketState, status: Status | null, kept: boolean, lines: number): string {
  if (state === "connecting") return "Connecting";
  if (state === "reconnecting") return "Reconnecting";
  if (state === "ended" && lines === 0) return "The mission has ended, and none of its output was stored.";
  const last = status && status.attempt > 0 ? `Attempt ${status.attempt}: ${status.attempt_status}. ` : "";
  if (state === "ended") return `${last}The mission has ended${kept ? "; this is its stored output" : ""}.`;
  return `${last}${lines === 0 ? "Live. No output yet." : "Live."}`;
}

function Find({ screen }: { screen: React.RefObject<Screen | null> }) {
  const [text, setText] = useState("");
  const [missing, setMissing] = useState(false);
  const find = (back: boolean) => setMissing(text !== "" && screen.current?.find(text, back) === false);
  return (
    <form
      role="search"
      className="row"
      onSubmit={(event) => {
        event.preventDefault();
        find(false);
      }}
    >
      <input className="input" type="search" placeholder="Find in the output" aria-label="Find in the output" value={text} onChange={(event) => setText(event.target.value)} />
      <Button type="submit" disabled={text === ""}>
        Next
      </Button>
      <Button disabled={text === ""} onClick={() => find(true)}>
        Previous
      </Button>
      <span role="status" className="soft">
        {missing ? "Not found" : ""}
      </span>
    </form>
  );
}
